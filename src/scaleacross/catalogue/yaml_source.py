"""Read YAML or JSON and record the place of every value, so that errors can name file, line and column.

Only plain data is accepted: mappings with text keys, lists, text, numbers, booleans, null. Where YAML 1.1 would
surprise, YAML 1.2 is followed (``1e9`` is a number, ``2024-01-01`` is text). Python tags, merge keys, duplicate keys,
huge files and alias bombs are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleacross.errors import InputError, unreadable

if TYPE_CHECKING:
    import yaml

MAX_FILE_BYTES: Final = 8 * 2**20
MAX_NODES: Final = 200_000
MAX_DEPTH: Final = 50
MAX_REMEMBERED: Final = 2**16
"""Longest text whose parsed content is cached, characters."""

STANDARD_INPUT: Final = "-"

KeyPath = tuple[str | int, ...]

_TAG: Final = "tag:yaml.org,2002:"
_ODD_NUMBER: Final = re.compile(r"[-+]?(0[0-9_]+|0[xXbBoO].*|.*:.*)")
_EXPONENT: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


@dataclass(frozen=True)
class Source:
    """Plain data and the place of each part of it.

    Attributes:
        label: the file (or ``--set``) as it appears in messages.
        data: what was read.
        marks: key path -> place of that key or item, ready to print (``file:line:column``).
        folder: directory against which relative paths in ``data`` are resolved; None when there is none.
        prefix: keys that lead to ``data`` in the file, for messages.
    """

    label: str
    data: Any
    marks: Mapping[KeyPath, str] = field(default_factory=dict)
    folder: Path | None = None
    prefix: KeyPath = ()

    def place(self, path: KeyPath) -> str:
        """Place of ``path``, or of the closest enclosing part with a recorded place."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.marks:
                return self.marks[path[:end]]
        return self.label

    def key(self, path: KeyPath) -> str:
        """``path`` in the form of messages, ``key 'a.b.0': ``; empty for the whole file."""
        whole = ".".join(map(str, (*self.prefix, *path)))
        return f"key '{whole}': " if whole else ""

    def sub(self, key: str) -> Source:
        """Return the part under ``key`` as its own source."""
        marks = {path[1:]: mark for path, mark in self.marks.items() if path[:1] == (key,)}
        return Source(self.label, self.data[key], marks, self.folder, (*self.prefix, key))


def read_file(path: Path) -> Source:
    """Return the content of a YAML or JSON file.

    Raises:
        InputError: unreadable, too large, not text, not plain data, or empty.
    """
    text = read_text(path)
    json_text = path.suffix == ".json" and bool(text.strip())
    source = _parse_json(text, path) if json_text else parse_yaml(text, str(path), path.parent)
    if source.data is None:
        raise InputError(f"{path}: the file is empty; a mapping (key: value) is expected")
    return source


def read_standard_input() -> Source:
    """Return YAML or JSON (a subset of YAML) from standard input; relative paths in it start at the working directory.

    Raises:
        InputError: too large, not text, not plain data, or empty.
    """
    stream = getattr(sys.stdin, "buffer", None)
    content = stream.read(MAX_FILE_BYTES + 1) if stream else sys.stdin.read(MAX_FILE_BYTES + 1).encode()
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"standard input: more than {MAX_FILE_BYTES // 2**20} MiB; as much is read")
    try:
        source = parse_yaml(content.decode("utf-8-sig"), "standard input", Path())
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not text (byte {error.start} is no UTF-8); YAML is expected") from None
    if source.data is None:
        raise InputError("standard input is empty; a mapping (key: value) is expected")
    return source


def read_text(path: Path) -> str:
    """Return the text of a file. Raises InputError: unreadable, too large, or not text."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a directory; name a YAML file in it")
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise InputError(f"{path}: {size / 2**20:.1f} MiB; files up to {MAX_FILE_BYTES // 2**20} MiB are read")
        return path.read_bytes()[: MAX_FILE_BYTES + 1].decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is no UTF-8); YAML text is expected") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r}: cannot be read ({error})") from None


def _parse_json(text: str, path: Path) -> Source:
    import json

    def refuse_constant(name: str) -> float:
        raise InputError(f"{path}: {name} is no number that JSON knows")

    try:
        data = json.loads(text, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}{_cut_off(text, error.pos)}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: not JSON that can be read: {error}") from None
    return Source(str(path), data, {(): str(path)}, path.parent)


def _cut_off(text: str, position: int) -> str:
    """Return a note where the rest of a JSON text has neither a bracket nor a brace that closes, else ''."""
    return "" if {"]", "}"} & set(text[position:]) else "; the file ends early: was it copied whole?"


def parse_yaml(text: str, label: str, folder: Path | None = None) -> Source:
    """Parse ``text`` into plain data with marks.

    Raises:
        InputError: not YAML, or more than plain data (see the module docstring).
    """
    source = _parsed_once(text, label, folder) if len(text) <= MAX_REMEMBERED else _parsed(text, label, folder)
    return replace(source, data=deepcopy(source.data))  # the cache shares data, and callers may change it


def _parsed(text: str, label: str, folder: Path | None) -> Source:
    import yaml

    try:
        root = _composed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        raise InputError(f"{place}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{label}: not YAML text: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise InputError(f"{label}: nested too deeply; {MAX_DEPTH} levels are read") from None
    reader = _Reader(label)
    data = None if root is None else reader.value(root, ())
    return Source(label, data, reader.marks, folder)


def _composed(text: str) -> yaml.Node | None:
    """Return the nodes of ``text``.

    libyaml is ten times as fast. If it refuses the text, PyYAML's own loader parses again for its better error message.
    """
    import yaml

    try:
        return yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.compose(text, Loader=yaml.SafeLoader)


# one job refers to the same catalogue entries many times
_parsed_once = lru_cache(maxsize=128)(_parsed)


class _Reader:
    """Convert composed nodes into plain data and record the place of each."""

    def __init__(self, label: str) -> None:
        import yaml

        self.label = label
        self.marks: dict[KeyPath, str] = {}
        self._num_nodes = 0
        self._scalars = yaml.SafeLoader("")

    def place(self, node: yaml.Node) -> str:
        return f"{self.label}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        import yaml

        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise InputError(f"{self.place(node)}: more than {MAX_NODES:,} values (aliases counted as often as used)")
        if len(path) > MAX_DEPTH:
            raise InputError(f"{self.place(node)}: nested too deeply; {MAX_DEPTH} levels are read")
        self.marks.setdefault(path, self.place(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise InputError(f"{self.place(node)}: tag '{node.tag}' is not read; write plain values")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag == _TAG + "merge":
                raise InputError(f"{self.place(key_node)}: merge keys (<<) are not read; write the keys out")
            if not isinstance(key, str) or "\n" in key:
                raise InputError(f"{self.place(key_node)}: a key must be plain text")
            if key in out:
                raise InputError(f"{self.place(key_node)}: key '{key}' is stated twice; keep one")
            self.marks[(*path, key)] = self.place(key_node)
            out[key] = self.value(value_node, (*path, key))
        return out

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        import yaml

        text: str = node.value
        if node.tag == _TAG + "str":
            return float(text) if not node.style and _EXPONENT.fullmatch(text) else text
        if node.tag == _TAG + "timestamp":
            return text
        if node.tag == _TAG + "bool" and text.lower() not in ("true", "false"):
            return text
        # YAML 1.1 would read 010 as 8 and 1:30 as 90
        if node.tag in (_TAG + "int", _TAG + "float") and _ODD_NUMBER.fullmatch(text):
            raise InputError(
                f"{self.place(node)}: {text[:40]} would be read as octal, hexadecimal, binary or minutes: write a decimal "
                "number, or quote it if it is text"
            )
        if node.tag in (_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"):
            try:
                return self._scalars.construct_object(node)
            except (ValueError, yaml.YAMLError):
                raise InputError(f"{self.place(node)}: '{text[:40]}' cannot be read as a number") from None
        raise InputError(f"{self.place(node)}: tag '{node.tag}' is not read; write plain values")


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file of any length. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {unreadable(error)}") from None
