"""Settings shared by all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# Equal seeds give equal examples everywhere; no deadline, because shared machines stall and times are not what is tested.
settings.register_profile("scaleacross", deadline=None, derandomize=True)
settings.load_profile("scaleacross")

# Tables fold at the width of the terminal that the tests are started from; no test is about that one.
os.environ.pop("COLUMNS", None)
os.environ.pop("SCALEACROSS_DEBUG", None)
