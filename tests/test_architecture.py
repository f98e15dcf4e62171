"""The shape of the repository, held as data: imports, sizes, and forbidden constructs."""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "scaleacross"
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 80


class Room(NamedTuple):
    """The packages that a first-level module or package of ``scaleacross`` may import besides itself and the standard
    library."""

    rooms: frozenset[str]
    third_party: frozenset[str] = frozenset()


def _room(rooms: str, third_party: str = "") -> Room:
    return Room(frozenset(rooms.split()), frozenset(third_party.split()))


BASE = "units errors plugins"
NOUNS = f"{BASE} spec"
MODELS = f"{NOUNS} workloads schedules"
COSTS = f"{MODELS} cost_models targets"

ROOMS = {
    "units": _room(""),
    "errors": _room(""),
    "lazy": _room(""),
    "machine_code": _room("", "numba"),
    "plugins": _room("errors"),
    "spec": _room(BASE, "pydantic"),
    "samples": _room(BASE, "numpy"),
    "row_codec": _room(BASE, "numpy zstandard"),
    "workloads": _room(NOUNS, "pydantic"),
    "schedules": _room(NOUNS),
    "catalogue": _room(f"{NOUNS} workloads", "yaml pydantic pydantic_core"),
    "step": _room(f"{NOUNS} schedules", "numpy"),
    "targets": _room(f"{NOUNS} workloads", "numpy"),
    "importers": _room(f"{NOUNS} catalogue"),
    "cost_models": _room(f"{MODELS} samples machine_code", "numpy networkx"),
    "simulation": _room(f"{MODELS} step machine_code", "numpy"),
    "verification": _room(COSTS, "numpy"),
    "solvers": _room(f"{COSTS} verification samples machine_code", "numpy networkx ortools threadpoolctl"),
    "emitters": _room(f"{MODELS} targets", "numpy networkx google"),  # protobuf: Chakra traces
    "readers": _room(f"{MODELS} targets emitters"),
    "calibration": _room(COSTS, "numpy"),
    "validation": _room(f"{COSTS} catalogue", "numpy pydantic"),
    "diagnosis": _room(NOUNS, "networkx"),
    "api": _room(
        f"{COSTS} lazy simulation catalogue verification solvers emitters importers readers validation calibration"
        " diagnosis step targets row_codec samples",
        "numpy pyarrow distributed ray",
    ),
    "report": _room(f"{MODELS} validation calibration api", "rich vl_convert"),  # of api only its results, for types
    "runtime": _room(f"{NOUNS} schedules row_codec samples", "torch triton numpy pydantic"),
    "bundle": _room(f"{NOUNS} api emitters"),
    "testbed": _room(f"{NOUNS} schedules catalogue emitters api runtime", "torch"),
    "cli": _room(f"{NOUNS} api bundle catalogue importers emitters report runtime testbed machine_code", "typer rich"),
    "__main__": _room("cli"),
    "__init__": _room(f"{NOUNS} lazy workloads api catalogue"),
}
MAY_PRINT = frozenset({"report", "cli"})
MUTATING_METHODS = frozenset(
    ("append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert", "remove", "discard")
)
MUTABLE_CALLS = frozenset({"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict"})
MUTABLE_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
READ_ONLY_ANNOTATIONS = frozenset({"Final", "Mapping", "Sequence", "Collection", "Iterable"})


# --- checkers: source in, violations out ----------------------------------------------------------------------------


@cache
def _nodes(source: str) -> list[ast.AST]:
    """The module node, then all nodes in it."""
    return list(ast.walk(ast.parse(source)))


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    """Exclude objects from garbage collection.

    Otherwise it would visit millions of nodes again, here and in all later tests.
    """
    gc.disable()
    yield
    _nodes.cache_clear()
    gc.enable()


def imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import, wherever it stands; names imported from the package itself count as modules."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module == "scaleacross":
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def import_violations(room: str, source: str) -> list[str]:
    """Imports that the table does not allow in ``room``."""
    allowed, out = ROOMS[room], []
    for line, module in imports(_nodes(source)):
        top, _, rest = module.partition(".")
        if module.startswith("."):
            out.append(f"{line}: relative import; write it in full")
        elif top == "scaleacross":
            target = rest.partition(".")[0]
            if target != room and target not in allowed.rooms:
                out.append(f"{line}: {room} may not import {module}")
        elif top not in sys.stdlib_module_names and top not in allowed.third_party:
            out.append(f"{line}: {room} may not import third-party {top}")
    return out


def size_violations(source: str) -> list[str]:
    """Files and functions over budget."""
    out = []
    num_lines = len(source.splitlines())
    if num_lines > MAX_FILE_LINES:
        out.append(f"file of {num_lines} lines; at most {MAX_FILE_LINES}")
    for node in _nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                out.append(f"{node.lineno}: function {node.name} of {length} lines; at most {MAX_FUNCTION_LINES}")
    return out


def style_violations(room: str, source: str) -> list[str]:
    """Star imports, ``assert``, ``global``, and ``print`` outside the rooms that may."""
    out = []
    for node in _nodes(source):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            out.append(f"{node.lineno}: star import")
        elif isinstance(node, ast.Assert):
            out.append(f"{node.lineno}: assert; raise an error of errors.py instead")
        elif isinstance(node, ast.Global):
            out.append(f"{node.lineno}: global; pass arguments and return values")
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
            and room not in MAY_PRINT
        ):
            out.append(f"{node.lineno}: print; return a value or use report")
    return out


def state_violations(source: str) -> list[str]:
    """Module-level containers that are neither constants by name or annotation, and constants that are changed anyway."""
    nodes = _nodes(source)
    out, constants = [], set()
    for node in ast.iter_child_nodes(nodes[0]):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not _is_mutable(node.value):
            continue
        read_only = isinstance(node, ast.AnnAssign) and _annotation_name(node.annotation) in READ_ONLY_ANNOTATIONS
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = target.id if isinstance(target, ast.Name) else ast.unparse(target)
            constants.add(name)
            if not (read_only or name == "__all__" or re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)):
                out.append(f"{node.lineno}: mutable module state {name}; a constant is ALL_CAPS or Final")
    out += [f"{line}: {name} is changed after its definition" for line, name in _changes(nodes) if name in constants]
    return out


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MUTABLE_CALLS
    return isinstance(value, MUTABLE_DISPLAYS)


def _annotation_name(annotation: ast.expr) -> str:
    head = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return ast.unparse(head).rpartition(".")[2]


def _changes(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, name) of item assignments and deletions, augmented assignments and mutating method calls."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING_METHODS:
            if isinstance(node.func.value, ast.Name):
                yield node.lineno, node.func.value.id
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store | ast.Del)
            and isinstance(node.value, ast.Name)
        ):
            yield node.lineno, node.value.id
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


MACHINE_PATH = re.compile(r"(?<![\w./~-])/(?:work|root)/")


def machine_path_violations(text: str) -> list[str]:
    """Lines that name a directory of somebody's machine."""
    return [
        f"{line}: {content.strip()}"
        for line, content in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(content)
    ]


# --- the repository -------------------------------------------------------------------------------------------------


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _texts() -> list[Path]:
    """Text files that belong to the repository; build output and caches do not."""
    own = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a worktree has it as a file
    for folder in ("src", "tests", "configs", "benchmarks", ".ci", "docs", "examples"):
        own += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    suffixes = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".sh", ".csv", ".txt", ""}
    return sorted(path for path in own if path.suffix in suffixes and "__pycache__" not in path.parts)


def _found(check: Callable[[str, str], list[str]]) -> str:
    """What ``check``, (room, source) -> violations, finds in the package, one line each."""
    rows = []
    for path in _sources():
        violations = check(_room_of(path), path.read_text(encoding="utf-8"))
        rows += [f"{path.relative_to(ROOT)}:{violation}" for violation in violations]
    return "\n".join(rows)


def test_every_room_has_a_row() -> None:
    rooms = {_room_of(path) for path in _sources()}
    assert rooms == set(ROOMS), (
        "a new room: add a row to ROOMS and to the table in README.md; a room that went: take its row out"
    )


def test_rooms_import_what_the_table_allows() -> None:
    assert not (found := _found(import_violations)), found


def test_files_and_functions_keep_the_size_budget() -> None:
    assert not (found := _found(lambda _, source: size_violations(source))), found


def test_package_keeps_the_style() -> None:
    assert not (found := _found(style_violations)), found


def test_package_has_no_mutable_module_state() -> None:
    assert not (found := _found(lambda _, source: state_violations(source))), found


def test_tests_keep_the_size_budget() -> None:
    found = {path.name: size_violations(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py")}
    assert not {name: violations for name, violations in found.items() if violations}


def test_table_has_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(ROOMS):
        ready = {name for name, room in ROOMS.items() if name not in done and room.rooms <= done}
        assert ready, f"rooms import each other in a circle: {sorted(set(ROOMS) - done)}"
        done |= ready


def test_readme_shows_every_room() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", readme, flags=re.MULTILINE)
    assert {room for row in rows for room in re.findall(r"`(\w+)`", row)} == set(ROOMS) - {"__init__"}


def test_no_machine_path_in_the_repository() -> None:
    found = {
        str(path.relative_to(ROOT)): machine_path_violations(path.read_text(encoding="utf-8")) for path in _texts()
    }
    assert not {name: lines for name, lines in found.items() if lines}


# --- the checkers find violations ------------------------------------------------------------------------------------------


def test_forbidden_import_is_seen() -> None:
    for room, source in (
        ("spec", "import scaleacross.solvers.joint"),
        ("spec", "from scaleacross import api"),
        ("cost_models", "def f():\n    from scaleacross.solvers import joint"),
        ("units", "from scaleacross.errors import InputError"),
        ("spec", "import numpy as np"),
        ("workloads", "from numpy import array"),
        ("schedules", "import numpy"),
        ("cost_models", "import ortools.sat.python.cp_model"),
        ("verification", "import ortools"),
        ("verification", "import scaleacross.solvers.joint"),
        ("api", "import torch"),
        ("emitters", "import torch"),
        ("report", "from .format import count"),
    ):
        assert len(import_violations(room, source)) == 1, source


def test_allowed_import_passes() -> None:
    for room, source in (
        ("solvers", "from ortools.sat.python import cp_model"),
        ("solvers", "from scaleacross.cost_models.step import price"),
        ("cost_models", "import numpy as np\nimport math"),
        ("report", "from scaleacross.report.format import count\nfrom rich.text import Text"),
        ("cli", "from scaleacross import catalogue"),
    ):
        assert import_violations(room, source) == [], source


def test_size_limits_are_exact() -> None:
    assert size_violations("x = 1\n" * MAX_FILE_LINES) == []
    assert len(size_violations("x = 1\n" * (MAX_FILE_LINES + 1))) == 1
    body = "    pass\n"
    assert size_violations("def f():\n" + body * (MAX_FUNCTION_LINES - 1)) == []
    assert len(size_violations("def f():\n" + body * MAX_FUNCTION_LINES)) == 1


def test_forbidden_style_is_seen() -> None:
    for source in (
        "from os import *",
        "assert x > 0",
        "def f():\n    global x\n    x = 1",
        "print('hello')",
        "def f():\n    print(1)",
    ):
        assert len(style_violations("solvers", source)) == 1, source


def test_report_may_print() -> None:
    assert style_violations("report", "print(1)") == []


def test_module_state_is_seen() -> None:
    for source in (
        "cache = {}",
        "seen: set[int] = set()",
        "rows = [n for n in range(3)]",
        "table = collections.defaultdict(list)",
        "NAMES = ['a']\nNAMES.append('b')",
        "NAMES = {}\ndef f():\n    NAMES['a'] = 1",
        "NAMES = {}\ndef f():\n    del NAMES['a']",
        "NAMES: Final = []\nNAMES += [1]",
    ):
        assert len(state_violations(source)) == 1, source


def test_constants_and_locals_pass() -> None:
    for source in (
        "NAMES = ['a']",
        "_NAMES = {'a': 1}",
        "names: Final[dict[str, int]] = {'a': 1}",
        "table: Mapping[str, int] = {'a': 1}",
        "__all__ = ['a']",
        "size = 3\nnames = ('a', 'b')",
        "def f():\n    seen = []\n    seen.append(1)",
    ):
        assert state_violations(source) == [], source


def test_machine_path_is_seen() -> None:
    folder = "work"
    assert len(machine_path_violations(f"see /{folder}/notes.md")) == 1
    assert len(machine_path_violations(f"open('/{'root'}/.cache')")) == 1
    assert machine_path_violations(f"https://example.org/{folder}/notes and src/{folder}/x and frame{folder}/y") == []
