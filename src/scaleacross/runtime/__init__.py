"""The bundled runtime: ``torch.distributed`` backend ``scaleacross``, whose collectives follow the plan.

Importing this package registers the backend where torch is installed (``pip install 'scaleacross[runtime]'``).
"""

from __future__ import annotations

from scaleacross.runtime.requirement import has_torch

if has_torch():
    from scaleacross.runtime.process_group import register

    register()
