"""Fill templates of files that are the same for every plan but for some words."""

from __future__ import annotations

import re
from importlib.resources import files


def filled(template: str, **words: object) -> str:
    """Return ``templates/TEMPLATE`` with every ``@word@`` replaced by its word. Raises KeyError for a missing word."""
    text = files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: str(words[found[1]]), text)
