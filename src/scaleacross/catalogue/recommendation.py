"""Load recommendation models, jobs and plans from a name, a YAML, a CSV of tables or a TorchRec configuration."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any, Final

from scaleacross.catalogue.codec_table import codec_rows
from scaleacross.catalogue.find import find
from scaleacross.catalogue.kinds import FAMILIES, kind_of, require_kind
from scaleacross.catalogue.load import Reference, full_topology, part, read, topology_under
from scaleacross.catalogue.overrides import Overrides, apply_overrides
from scaleacross.catalogue.validation import validate
from scaleacross.catalogue.yaml_source import Source, lines_of, read_file
from scaleacross.errors import InputError
from scaleacross.spec.inference import InferenceJob
from scaleacross.spec.recommendation import RecommendationJob, RecommendationPlan
from scaleacross.spec.topology import Topology
from scaleacross.workloads.recommendation import Dlrm
from scaleacross.workloads.sequences import Lengths

_COLUMNS: Final = ("name", "rows", "dimension", "pooling")


def is_recommendation(ref: object) -> bool:
    """Whether ``ref`` is a recommendation job or plan: an object, a mapping, or the path of a file with one.

    It is False for anything that cannot be read.
    """
    if isinstance(ref, RecommendationJob | RecommendationPlan):
        return True
    return kind_of(_peek(ref)) in ("recommendation job", "recommendation plan")


def _peek(ref: object) -> Mapping[Any, Any]:
    """Return ``ref`` if it is a mapping, or the mapping in the file at that path; empty if there is none."""
    try:
        data = read_file(Path(ref)).data if isinstance(ref, str | Path) and Path(ref).is_file() else ref
    except InputError:
        return {}
    return data if isinstance(data, Mapping) else {}


def load_recommendation(ref: Reference | Dlrm, folder: Path | None = None) -> Dlrm:
    """Load a recommendation model by catalogue name, path (YAML or CSV) or mapping. Raises InputError."""
    return ref if isinstance(ref, Dlrm) else _model_from(_read_model(ref, folder))


def _read_model(ref: Reference, folder: Path | None) -> Source:
    if isinstance(ref, str | Path) and str(ref).endswith(".csv"):
        path = find("recommendation", str(ref), folder)
        name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("._-")[:64] or "unnamed"
        return Source(str(path), {"name": name, "tables": tables_of_csv(path)})
    return read("recommendation", ref, folder)


def _model_from(source: Source) -> Dlrm:
    data = source.data
    if isinstance(data, dict) and data.get("family", "dlrm") not in FAMILIES:
        raise InputError(
            f"{source.place(('family',))}: no family '{data['family']}' of recommendation models: {', '.join(FAMILIES)}"
        )
    if isinstance(data, dict) and isinstance(data.get("tables"), list | tuple):
        data = {**data, "tables": [_table(one) for one in data["tables"]]}
        source = Source(source.label, data, source.marks, source.folder, source.prefix)
    return validate(Dlrm, source)


def _table(one: Any) -> Any:
    """Return a table under this package's keys.

    TorchRec's ``EmbeddingBagConfig`` (num_embeddings, embedding_dim, feature_names) is converted.
    """
    if not isinstance(one, Mapping) or "num_embeddings" not in one:
        return one
    features = one.get("feature_names") or [one.get("name")]
    known = ("name", "num_embeddings", "embedding_dim", "feature_names", "pooling_factors", "pooling", "data_type")
    unknown = [key for key in one if key not in (*known, "init_fn", "weight_init_max", "weight_init_min", "need_pos")]
    if unknown:
        raise InputError(f"table '{one.get('name')}': no key {', '.join(map(repr, unknown))} of an EmbeddingBagConfig")
    return {
        "name": one.get("name"),
        "rows": one["num_embeddings"],
        "dimension": one.get("embedding_dim"),
        "pooling": one.get("pooling_factors") or [1.0] * len(features),
    }


def tables_of_csv(path: Path) -> list[dict[str, Any]]:
    """Read tables from a CSV: columns name, rows, dimension; optional pooling (several: ``1 10``) and num_tables.

    Raises:
        InputError: a missing or unknown column, or a cell that is no number, with its line.
    """
    reader = csv.DictReader(lines_of(path))
    header = [name.strip() for name in reader.fieldnames or ()]
    unknown = [name for name in header if name not in (*_COLUMNS, "num_tables")]
    missing = [name for name in _COLUMNS[:3] if name not in header]
    if unknown or missing:
        said = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(map(repr, unknown))}"
        has = ", ".join(header) or "none"
        raise InputError(f"{path}:1: columns: {said}; the file has {has}; known are {', '.join(_COLUMNS)}, num_tables")
    out = [_row(path, line, row) for line, row in enumerate(reader, 2)]
    if not out:
        raise InputError(f"{path}: no table below the header")
    return out


def _row(path: Path, line: int, row: Mapping[str | Any, Any]) -> dict[str, Any]:
    cells = {str(key).strip(): str(value or "").strip() for key, value in row.items()}

    def above_0(key: str, text: str, kind: type[int] | type[float] = int) -> float:
        try:
            if 0 < (value := kind(text)) < float("inf"):
                return value
        except ValueError:
            pass
        what = "whole number" if kind is int else "number"
        raise InputError(f"{path}:{line}: table '{cells['name']}': {key} '{text}' is no {what} above 0")

    out: dict[str, Any] = {"name": cells["name"], **{key: above_0(key, cells[key]) for key in ("rows", "dimension")}}
    if cells.get("pooling"):
        out["pooling"] = [above_0("pooling", one, float) for one in cells["pooling"].split()]
    if cells.get("num_tables"):
        out["num_tables"] = above_0("num_tables", cells["num_tables"])
    return out


def load_recommendation_job(
    ref: Reference | RecommendationJob, overrides: Overrides = ()
) -> tuple[RecommendationJob, Dlrm, Topology]:
    """Load a self-contained job by path or mapping with ``a.b=value`` overrides, with its model and topology.

    Raises:
        InputError: not found, or an error in the job, its model, its topology or an override, each with its place.
    """
    if isinstance(ref, RecommendationJob):
        ref = ref.model_dump(mode="json", exclude_none=True)
    return recommendation_job_from(read("jobs", ref), overrides)


def recommendation_job_from(source: Source, overrides: Overrides = ()) -> tuple[RecommendationJob, Dlrm, Topology]:
    """Return the self-contained job in ``source``, with its model and topology. Raises InputError."""
    require_kind(source, "recommendation job")
    expand = {"workload": _full_model, "topology": full_topology}
    source = _with_lengths(apply_overrides(source, overrides, RecommendationJob, expand))
    job = validate(RecommendationJob, _with_codecs(source))
    model, topology = _model_under(source), topology_under(source)
    _require_tables(source, job, model)
    full = {"workload": model.model_dump(mode="json"), "topology": topology.model_dump(mode="json")}
    return job.model_copy(update=full), model, topology


def _require_tables(source: Source, job: RecommendationJob, model: Dlrm) -> None:
    """Raise InputError if ``compression: tables`` names a table that the model lacks."""
    known = [table.name for table in model.expanded()]
    unknown = [name for name in job.compression.tables if name not in known] if job.compression else []
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        others = (
            f"nearest: '{near[0]}'" if near else f"its tables are {', '.join(known[:5])}{' ...' if known[5:] else ''}"
        )
        raise InputError(
            f"{source.place(('compression', 'tables', unknown[0]))}: model '{model.name}' has no table "
            f"{', '.join(map(repr, unknown[:5]))}; {others}"
        )


def _with_codecs(source: Source) -> Source:
    """Replace the file or name under ``compression: measured`` by its rows."""
    data = source.data
    asked = data.get("compression") if isinstance(data, dict) else None
    if not isinstance(asked, Mapping) or not isinstance(asked.get("measured"), str):
        return source
    try:
        rows = codec_rows(asked["measured"], source.folder)
    except InputError as error:
        raise InputError(f"{source.place(('compression', 'measured'))}: {error}") from None
    return replace(source, data={**data, "compression": {**asked, "measured": rows}})


def _with_lengths(source: Source) -> Source:
    """Move the job's lengths (a law or a CSV) into its workload, where the model expects them."""
    stated = source.data.get("lengths") if isinstance(source.data, dict) else None
    if stated is None:
        return source
    place = source.place(("lengths",))
    if isinstance(stated, str):
        there = [base / stated for base in (source.folder, Path()) if base is not None and (base / stated).is_file()]
        if not there:
            raise InputError(
                f"{place}: no file '{stated[:100]}': a CSV with a column length, or a law ({{kind: uniform, longest: 4096}})"
            )
        stated = {"kind": "measured", "values": _column(there[0], "length")}
    elif isinstance(stated, Mapping):
        validate(Lengths, source.sub("lengths"))
    model = _model_under(source).model_dump(mode="json")
    if model["sequence"] is None:
        raise InputError(
            f"{place}: workload '{model['name']}' has no layer whose time grows with a sample's length: lengths are of "
            "family sequence_rec"
        )
    model["sequence"]["lengths"] = stated
    return replace(source, data={**source.data, "workload": model, "lengths": None})


def _column(path: Path, name: str) -> list[float]:
    """Return the positive numbers of a CSV's column. Raises InputError with the line."""
    rows = list(csv.DictReader(lines_of(path), skipinitialspace=True))
    if not rows or name not in rows[0]:
        raise InputError(f"{path}:1: a column '{name}' and rows below it are expected")
    out = []
    for line, row in enumerate(rows, 2):
        try:
            out.append(float(row[name] or ""))
        except ValueError:
            raise InputError(f"{path}:{line}: {name} '{row[name]}' is no number") from None
        if not 0 < out[-1] < inf:
            raise InputError(f"{path}:{line}: {name} {row[name]} is not above 0 and finite")
    return out


def _model_under(source: Source) -> Dlrm:
    return _model_from(part(source, "workload", _read_model))


def _full_model(source: Source) -> tuple[type[Dlrm], dict[str, Any]]:
    return Dlrm, _model_under(source).model_dump(mode="json")


def is_inference(ref: object) -> bool:
    """Whether ``ref`` is an inference job: an object, or a mapping or file with the key ``cards``."""
    if isinstance(ref, InferenceJob):
        return True
    return kind_of(_peek(ref)) == "inference job"


def load_inference_job(ref: Reference | InferenceJob, overrides: Overrides = ()) -> tuple[InferenceJob, Dlrm]:
    """Load an inference job by path or mapping with ``a.b=value`` overrides; return it self-contained, with its model.

    Raises:
        InputError: not found, or an error in the job, its model or an override, each with its place.
    """
    if isinstance(ref, InferenceJob):
        ref = ref.model_dump(mode="json", exclude_none=True)
    source = apply_overrides(read("jobs", ref), overrides, InferenceJob, {"workload": _full_model})
    job, model = validate(InferenceJob, source), _model_under(source)
    return job.model_copy(update={"workload": model.model_dump(mode="json")}), model


def load_recommendation_plan(path: str | Path) -> RecommendationPlan:
    """Load a plan that this package wrote. Raises InputError if the file holds none."""
    source = read_file(find("plans", str(path)))
    require_kind(source, "recommendation plan")
    return validate(RecommendationPlan, source)
