"""Pages that the package knows best: every field of a job, topology, workload and study, and every command's help."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from scaleacross.catalogue import SCHEMA_KINDS, schema
from scaleacross.cli import app

PAGES: Final = {
    "job": ("Fields of a job", "configs/jobs/llama3_405b_two_buildings.yaml"),
    "topology": ("Fields of a topology", "configs/topologies/two_regions_priced.yaml"),
    "workload": ("Fields of a workload", "configs/workloads/mixtral-8x22b.yaml"),
    "study": ("Fields of a study", "configs/studies/two_buildings_trunk.yaml"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add ``reference/<name>.md`` for every schema of PAGES and ``reference/commands.md``."""
    for name, (title, example) in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=schema_page(name, title, example)))
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    return files


def schema_page(name: str, title: str, example: str) -> str:
    """A table of fields for ``name`` and for every object inside it, after a whole file as an example."""
    found = schema(name)
    lines = Path(example).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("# yaml-language-server"))
    parts = [f"# {title}", f"`scaleacross schema {name}` prints the same as JSON Schema. A file that is planned with:"]
    parts += [f"```yaml\n{text.strip()}\n```"]
    if "properties" in found:  # a union, as a workload is, has its kinds only
        parts += [f"## {name}", *_object(found)]
    for kind, definition in sorted(found.get("$defs", {}).items()):
        if "properties" in definition:
            parts += [f"## {kind}", *_object(definition)]
        elif "enum" in definition:
            parts += [f"## {kind}", "One of " + ", ".join(f"`{value}`" for value in definition["enum"]) + "."]
    return "\n\n".join(parts) + "\n"


def _object(definition: dict[str, Any]) -> Iterator[str]:
    if text := inspect.cleandoc(definition.get("description", "")):
        yield text.replace("``", "`")
    rows = ["| field | value | default | meaning |", "|---|---|---|---|"]
    required = definition.get("required", [])
    for key, field in definition["properties"].items():
        if key.startswith("$") or "(stated in the unit of the key's suffix)" in field.get("description", ""):
            continue
        default = "required" if key in required else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        cells = (f"`{key}`", _kind(field), default, field.get("description", ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    yield "\n".join(rows)


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := field.get("anyOf") or field.get("oneOf"):
        return " or ".join(dict.fromkeys(_kind(option) for option in options))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field.get("type") == "array":
        items = field.get("items") or {}
        return f"list of {_kind(items)}" if items else "list"
    if field.get("type") == "object":
        values = field.get("additionalProperties")
        values = values if isinstance(values, dict) else next(iter(field.get("patternProperties", {}).values()), None)
        return f"mapping to {_kind(values)}" if values else "mapping"
    names = {"integer": "whole number", "string": "text", "boolean": "true, false", "null": "null"}
    return names.get(field.get("type", ""), field.get("type", "any"))


def commands_page() -> str:
    """``--help`` of every command, as a terminal of 100 columns shows it."""
    group = get_command(app)
    parts = ["# Commands", "What `scaleacross COMMAND --help` prints."]
    with click.Context(group, info_name="scaleacross", terminal_width=100) as parent:
        for name in group.list_commands(parent):  # type: ignore[attr-defined]
            command = group.get_command(parent, name)  # type: ignore[attr-defined]
            with click.Context(command, info_name=name, parent=parent, terminal_width=100) as context:
                parts += [f"## {name}", f"```text\n{click.unstyle(command.get_help(context)).strip()}\n```"]
    return "\n\n".join(parts) + "\n"


assert set(PAGES) <= set(SCHEMA_KINDS), "a page for a schema that does not exist"
