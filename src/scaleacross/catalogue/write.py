"""A catalogue entry as YAML text, in the form that this package reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaleacross.catalogue.yaml_source import parse_yaml
from scaleacross.errors import InputError


def entry_text(data: Mapping[str, Any], comment: str = "") -> str:
    """``data`` as YAML: keys in their order, one line per figure where it fits, ``comment`` above it.

    Raises:
        InputError: a value is no plain data.
    """
    import yaml

    try:
        body = yaml.safe_dump(
            dict(data), sort_keys=False, allow_unicode=True, default_flow_style=None, width=float("inf")
        )
    except yaml.YAMLError as error:
        raise InputError(f"entry '{data.get('name')}' cannot be written: {error}") from None
    text = (f"# {comment}\n" if comment else "") + str(body)
    parse_yaml(text, "the written entry")
    return text
