"""Reading YAML: plain data with positions; everything else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleacross.catalogue.find import Kind, find
from scaleacross.catalogue.yaml_source import MAX_FILE_BYTES, parse_yaml, read_file
from scaleacross.errors import InputError


def test_values_and_their_places() -> None:
    source = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2.5}\n", "f.yaml")
    assert source.data == {"a": 1, "b": ["x", {"c": 2.5}]}
    assert source.place(("a",)) == "f.yaml:1:1"
    assert source.place(("b", 0)) == "f.yaml:3:5"
    assert source.place(("b", 1, "c")) == "f.yaml:4:6"
    assert source.place(("b", 1, "missing")) == "f.yaml:4:5"  # the closest part with a position
    assert source.sub("b").place((1, "c")) == "f.yaml:4:6"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("-2.5E-3", -2.5e-3),
        ("'1e9'", "1e9"),
        ("2024-01-01", "2024-01-01"),
        ("1_024", 1024),
        ("true", True),
        ("~", None),
        ("1e9x", "1e9x"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    read = parse_yaml(f"a: {text}", "f").data["a"]
    assert read == value
    assert type(read) is type(value)


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", "f:1:.*not YAML"),
        ("a: 1\na: 2", "f:2:1: key 'a' is stated twice"),
        ("a: !!python/object/apply:os.system [ls]", "f:1:4: tag .* is not read"),
        ("a: !own 3", "f:1:4: tag '!own' is not read"),
        ("a: &x {b: 1}\nc: {<<: *x}", "f:2:5: merge keys"),
        ("[1, 2]: 3", "f:1:1: a key must be plain text"),
        ("a: " + "9" * 5000, "f:1:4: .*cannot be read as a number"),
        ("a: &x [*x]", "nested too deeply"),
        ("[" * 1100, "nested too deeply"),
        (bomb(9), "more than 200,000 values"),
        ("a: 1\n---\nb: 2", "f:2:1: not YAML"),
        ("\x00", "f: not YAML text"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_yaml(text, "f")


def test_alias_used_a_few_times_is_fine() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: *x", "f").data == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.yaml", b"", "the file is empty"),
        ("f.yaml", b"# only a comment\n", "the file is empty"),
        ("f.yaml", b"\xff\xfe\x00", "not a text file"),
        ("f.json", b'{"a": ', r"f\.json:1:7: not JSON.*; the file ends early: was it copied whole\?"),
        ("f.json", b'{"a": "b', r"f\.json:1:7: not JSON.*; the file ends early: was it copied whole\?"),
        ("f.json", b'{"a": b}', r"f\.json:1:7: not JSON: Expecting value$"),
        ("f.json", b" \n", "the file is empty; a mapping"),
        ("f.json", b'{"a": NaN}', "NaN is no number"),
        ("f.json", b"[" * 200_000, "not JSON that can be read"),
        ("f.yaml", b"#" * (MAX_FILE_BYTES + 1), "8.0 MiB; files up to 8 MiB are read"),
    ],
)
def test_unreadable_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_file(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_file(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="is a directory"):
        read_file(tmp_path)


@pytest.mark.parametrize(
    ("kind", "written"), [("jobs", "job.yaml"), ("plans", "plan.json"), ("topologies", "topology.yaml")]
)
def test_a_directory_is_answered_with_the_file_in_it(
    kind: Kind, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``init DIR`` and ``plan -o DIR`` write a directory; its name alone was "no file and no name in the catalogue"."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match=f"mine is a directory without {written} and no name in the catalogue"):
        find(kind, "mine")
    (tmp_path / "mine" / written).write_text("{}")
    for ref in ("mine", "./mine"):
        with pytest.raises(InputError, match=f"mine is a directory; name mine/{written}"):
            find(kind, ref)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        parse_yaml(text, "f")
    except InputError as error:
        assert str(error).startswith("f")
