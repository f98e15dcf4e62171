"""Statements of the documents agree with the code."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import scaleacross as sa
from scaleacross import api
from scaleacross.catalogue import load_job
from scaleacross.cli import app
from scaleacross.emitters import EMITTERS

ROOT = Path(__file__).parent.parent
PATHS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "model.md"]
DOCUMENTS = [path.read_text(encoding="utf-8") for path in PATHS]


def blocks(language: str) -> list[str]:
    """Fenced code of ``language`` in all documents."""
    return [block for text in DOCUMENTS for block in re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)]


def test_commands_of_the_documents_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    used = re.findall(r"^scaleacross (\w+)(.*)", "\n".join(blocks("bash")), flags=re.MULTILINE)
    assert {name for name, _ in used} == set(commands), "the README shows every command, and no other"
    for name, arguments in used:
        known = {option for parameter in commands[name].params for option in parameter.opts}
        stated = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", arguments.partition("#")[0].partition("|")[0]))
        assert stated <= known, f"scaleacross {name} has no {stated - known}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_options_in_the_documentation_exist(page: Path) -> None:
    """Options in the documentation exist.

    This includes pages whose commands need a reader's own files. ``make docs`` runs the other commands.
    """
    commands = get_command(app).commands  # type: ignore[attr-defined]
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for block in re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL):
        for name, arguments in re.findall(r"^(?:\w+=\S+ )?scaleacross (\w+)(.*)", block, flags=re.MULTILINE):
            known = {option for parameter in commands[name].params for option in parameter.opts}
            own = arguments.partition(" -- ")[0]  # words after it belong to the program that is run
            stated = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", own.partition("#")[0].partition("|")[0]))
            assert stated <= known | {"--help"}, f"scaleacross {name} has no {stated - known}"


def test_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    used = set(re.findall(r"^make ([a-z ]+)", "\n".join(blocks("bash")), flags=re.MULTILINE))
    assert used
    assert {target for targets_used in used for target in targets_used.split()} <= targets


def test_job_of_the_readme_loads() -> None:
    job = load_job(yaml.safe_load(next(block for block in blocks("yaml") if "global_batch_tokens" in block)))
    assert (job.degrees.tp, job.global_batch_sequences) == (8, 2048)  # 16,777,216 tokens / 8,192


def test_targets_are_all_documented() -> None:
    to = next(option for option in get_command(app).commands["emit"].params if "--to" in option.opts)  # type: ignore[attr-defined]
    assert set(re.findall(r"\w+", to.help)) == set(EMITTERS)


@pytest.mark.heavy
def test_functions_of_the_readme_stay_callable_once_everything_is_imported() -> None:
    """Functions of the README stay callable once everything is imported.

    A fresh interpreter is needed, because a submodule's first import may replace a public name of the package.
    """
    names = sorted(set(re.findall(r"\bsa\.(\w+)\(", "\n".join(blocks("python")))) | {"verify"})
    everything = (
        "for one in pkgutil.walk_packages(api.__path__, 'scaleacross.api.'):\n    importlib.import_module(one.name)\n"
    )
    code = (
        f"import importlib, pkgutil\nimport scaleacross as sa\nfrom scaleacross import api\n{everything}"
        f"print([n for n in {names} if not callable(getattr(sa, n))] + [n for n in api.__all__ if not callable(getattr(api, n))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("[]\n", "")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    assert links
    assert not [link for link in links if not link.startswith("https://") and not (path.parent / link).exists()]


def test_the_version_is_one() -> None:
    """The version is stated once, in the package.

    The project file reads it there, and the citation and the classifiers agree.
    """
    import scaleacross

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"] and "version" not in project["project"]
    found = project["tool"]["hatch"]["version"]
    stated = re.search(found["pattern"], (ROOT / found["path"]).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert stated is not None
    assert stated["version"] == scaleacross.__version__ == citation["version"]
    assert citation["license"] == project["project"]["license"]
    least = project["project"]["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in project["project"]["classifiers"]


def test_figures_of_the_readme_on_accuracy_are_those_of_the_page() -> None:
    page, readme = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"), DOCUMENTS[0]
    trust = readme.partition("## How far to trust the numbers")[2].partition("**Simulation.**")[0]
    classes = dict(re.findall(r"^\| ([a-z][a-z, -]+) \| \d+ \| \d+ \| (.+?) \|$", page, flags=re.MULTILINE))
    for name in ("sources that nothing is fitted to", "sources that parameters are fitted to"):
        median, _, p90, _ = classes[name].split(" | ")
        assert median in trust, name
        assert f"{float(p90[:-2]):.0f} %" in trust, name
    covered = re.search(r"^\| all \| \d+ \| (\d+\.\d %) \|  \|", page, flags=re.MULTILINE)
    assert covered
    assert covered[1] in trust


def test_figures_of_the_page_on_calibrating_are_those_of_the_page_on_accuracy() -> None:
    accuracy = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    first = (ROOT / "docs" / "calibrating.md").read_text(encoding="utf-8").partition("\n## ")[0]
    for name in ("seen, dense", "never seen, or experts"):
        row = re.search(
            rf"^\| {name} \| \d+ \| \d+ \| (\d+\.\d %) \| .+? \| (\d+\.\d) % \|", accuracy, flags=re.MULTILINE
        )
        assert row
        assert row[1] in first, name
        assert f"{float(row[2]):.0f} %" in first, name


def test_the_first_page_links_to_every_page_of_its_folder() -> None:
    links = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= links, f"index.md does not link to {pages - links}"


def test_the_reference_lists_every_function_of_the_api_and_every_error() -> None:
    listed = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference" / "python.md").read_text(), flags=re.MULTILINE)
    errors = {name for name in sa.__all__ if name.endswith("Error")}
    assert {path.rpartition(".")[2] for path in listed} >= {*api.__all__, *errors}
    assert len(listed) == len(set(listed))
    assert all(hasattr(importlib.import_module(path.rpartition(".")[0]), path.rpartition(".")[2]) for path in listed)
