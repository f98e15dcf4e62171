"""JSON Schema of input files: the specs' own schema plus the spellings and short forms that the reader accepts.

pydantic knows only the SI fields. A file may also write a field in a user unit (``units.USER_UNITS``) or name a
catalogue entry where an object is expected. It may leave ``name`` to the file's own name, share ``building_defaults``,
and so on. Editors should complete and check all of these. ``scaleacross schema`` and the files in configs/schemas come
from here.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from pydantic import TypeAdapter

from scaleacross.spec.offloading import OFFLOADS
from scaleacross.units import user_keys

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_UNION: Final = "anyOf"
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_NAMED_ENTRIES: Final = ("accelerator", "technology")
_ONE_OR_MORE: Final = ("micro_batch_sequences", "recompute", "schedules", "num_chunks", "shard", *OFFLOADS)


def json_schema(model: Any, title: str, *, named_by_file: bool = True, discriminator: str | None = None) -> Schema:
    """JSON Schema (2020-12) of a file that holds ``model``, a pydantic model or a union of models.

    ``named_by_file``: the file's own name stands in for a missing ``name``. ``discriminator``: the key that must say which model
    of the union the file holds.

    Raises:
        ValueError: a field with a unit has a bound other than 0, which would have to be converted.
    """
    schema = TypeAdapter(model).json_schema(mode="validation")
    definitions: dict[str, Schema] = schema.get("$defs", {})
    root_name = getattr(model, "__name__", None)
    objects = {**definitions, **({root_name: schema} if root_name else {})}
    top = [schema] if "properties" in schema else [objects[ref["$ref"].rsplit("/", 1)[1]] for ref in schema[_UNION]]
    for node in top:
        required = set(node.get("required", ())) - ({"name"} if named_by_file else set())
        node["required"] = sorted(required | ({discriminator} if discriminator else set()))
    if "Job" in objects:
        _job_short_forms(objects["Job"])
    if "Topology" in objects:
        _building_defaults(objects["Topology"], definitions)
    for node in objects.values():
        if "properties" in node:
            _entries_by_name(node)
            _units(node)
            node["properties"] = (
                {**node["properties"], "$schema": {"type": "string"}} if node in top else node["properties"]
            )
    return {"$schema": DIALECT, **schema, "title": title}


def _units(node: Schema) -> None:
    """Add every spelling of a quantity next to its SI field; a required quantity needs at least one spelling."""
    properties: dict[str, Schema] = {}
    required = list(node.get("required", ()))
    one_of_each: list[Schema] = []
    for name, field in node["properties"].items():
        spellings = user_keys(name)
        for key in spellings:
            properties[key] = field if key == name else _in_user_unit(field, name, key)
        if len(spellings) > 1 and name in required:
            required.remove(name)
            one_of_each.append({"anyOf": [{"required": [key]} for key in spellings]})
    node["properties"] = properties
    node["required"] = required
    if one_of_each:
        node["allOf"] = [*node.get("allOf", ()), *one_of_each]


def _in_user_unit(field: Schema, name: str, key: str) -> Schema:
    if any(part.get(bound) for part in (field, *field.get("anyOf", ())) for bound in _BOUNDS):
        raise ValueError(
            f"field '{name}' has a unit and a bound other than 0: the bound would need conversion for '{key}'"
        )
    field = copy.deepcopy(field)
    field.pop("title", None)
    field.pop("default", None)
    field["description"] = f"{field.get('description', name)} (stated in the unit of the key's suffix)"
    return field


def _entries_by_name(node: Schema) -> None:
    """Allow a catalogue name or path wherever an accelerator or a network technology is expected."""
    for key in _NAMED_ENTRIES:
        field = node["properties"].get(key, {})
        if "$ref" in field:
            text = {"type": "string", "description": "catalogue name or path"}
            node["properties"][key] = {"anyOf": [text, {"$ref": field["$ref"]}]}


def _building_defaults(topology: Schema, definitions: dict[str, Schema]) -> None:
    """Add ``building_defaults``, which supply missing fields, so that a building itself requires its name only."""
    for name in ("Building", "BuildingLinks", "LevelLink"):
        definitions[name]["required"] = ["name"] if name == "Building" else []
    many = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    definitions["Building"]["properties"]["hosts"] = {
        "anyOf": [{"type": "string"}, many],
        "description": "real host names, rack by rack: node[001-064], or a list of such",
    }
    shared = copy.deepcopy(definitions["Building"])
    shared["required"] = []
    shared["title"], shared["description"] = "BuildingDefaults", "fields merged under every building"
    definitions["BuildingDefaults"] = shared
    _entries_by_name(shared)
    _units(shared)
    topology["properties"]["building_defaults"] = {"$ref": "#/$defs/BuildingDefaults"}


def _job_short_forms(job: Schema) -> None:
    """Allow the batch in tokens, token counts as text (4M), and single values in place of lists."""
    properties = job["properties"]
    properties["global_batch_tokens"] = {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "tokens per optimizer step, instead of global_batch_sequences",
    }
    written = {"type": "string", "pattern": "^[0-9][0-9_,.]* *[KMGkmg]?$", "description": "K = 1,024, M = 1,048,576"}
    for key in ("sequence_length", "global_batch_tokens"):
        number = properties[key]
        properties[key] = {"description": number.pop("description"), "anyOf": [number, written]}
    job["required"] = [key for key in job["required"] if key != "global_batch_sequences"]
    job["oneOf"] = [{"required": ["global_batch_sequences"]}, {"required": ["global_batch_tokens"]}]
    for key in _ONE_OR_MORE:
        many = properties[key]
        single = copy.deepcopy(many["items"])
        outer = {name: many.pop(name) for name in ("title", "description", "default") if name in many}
        properties[key] = {**outer, "anyOf": [many, single]}
