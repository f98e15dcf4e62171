"""Names go into file names and shell scripts, so characters that need quoting are refused."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from scaleacross.spec.base import NAME_PATTERN, Name

NAME: TypeAdapter[str] = TypeAdapter(Name)


@pytest.mark.parametrize("name", ["a", "building-a", "llama3.1-405b", "H100_SXM", "0", "x" * 64])
def test_accepted(name: str) -> None:
    assert NAME.validate_python(name) == name


@pytest.mark.parametrize("name", ["", "-rf", ".hidden", "a b", "a;ls", "$(id)", "a\n", "a/b", "ä", "x" * 65, "a\x00"])
def test_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ValidationError, match="is no name: use 1 to 64 letters"):
        NAME.validate_python(name)


@given(st.text(max_size=70))
def test_whatever_passes_needs_no_quoting(text: str) -> None:
    try:
        name = NAME.validate_python(text)
    except ValidationError:
        return
    assert shlex.quote(name) == name


@given(st.from_regex(NAME_PATTERN.replace("$", r"\Z")))
def test_the_pattern_of_the_json_schema_is_the_rule(text: str) -> None:
    assert NAME.validate_python(text) == text
    assert NAME.json_schema()["pattern"] == NAME_PATTERN
