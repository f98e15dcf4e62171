"""Build a job and a topology from arguments: accelerators per building, one inter-building link, a distance.

Figures that the user does not state come from the standard building (``configs/standard/building.yaml``). Every such
figure is marked ``assumed`` in the topology. The topology's description says so, and the report of a plan prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from scaleacross.catalogue.find import config_folders, find, names
from scaleacross.catalogue.products import standard_type
from scaleacross.catalogue.validation import nearest
from scaleacross.catalogue.write import entry_text
from scaleacross.catalogue.yaml_source import read_file
from scaleacross.errors import InputError
from scaleacross.spec.base import NAME_PATTERN
from scaleacross.spec.job import Job
from scaleacross.units import parse_tokens

STANDARD_FILE: Final = Path("standard") / "building.yaml"
MAX_BUILDINGS: Final = 26
MAX_KM: Final = 40_000.0

_RATE: Final = re.compile(r"(?:(\d+)\s*[xX×]\s*)?(\d+(?:\.\d+)?)\s*([GgTt])(?:[Bb]it/s|bps|b/s)?")
_BYTE_RATE: Final = re.compile(r"(.*\d)\s*[GgTt](?:B(?:ps|/s)?|[Bb]ytes?/s)")
_GPUS: Final = re.compile(r"(?:([^=:]+)=)?([^=:]+):(\d+)")


@dataclass(frozen=True)
class StandardLink:
    """One inter-building link as the user states it: a rate per direction over ``km`` of fibre."""

    text: str
    bytes_per_s: float
    km: float

    @property
    def one_way_latency_us(self) -> float:
        """Fibre delay plus the latency inside a standard building, µs."""
        inside: float = standard()["building"]["links"]["building"]["one_way_latency_us"]
        return round(self.km * float(standard()["fibre_us_per_km"]) + inside, 3)


@dataclass(frozen=True)
class Start:
    """Arguments of the command line.

    Attributes:
        model: catalogue name, or path of a YAML or a Hugging Face ``config.json``.
        topology: a file or a catalogue name, instead of ``gpus``, ``trunk`` and ``km``.
        gpus: ``TYPE:COUNT,...``, one building each, ``NAME=TYPE:COUNT`` to name it.
        trunk: rate of the inter-building link between every two buildings, e.g. ``4x400G``; None for one building.
        km: length of that link; None for one building.
        tokens: tokens per optimizer step, e.g. ``4M``.
        sequence: tokens per sequence, e.g. ``8192`` or ``8K``.
        target: framework that will run the plan; None: any framework.
        slurm: fields of the job's ``slurm:``.
    """

    model: str
    gpus: str | None
    tokens: str
    sequence: str
    topology: str | None = None
    trunk: str | None = None
    km: float | None = None
    target: str | None = None
    slurm: Mapping[str, Any] = field(default_factory=dict)


@cache
def standard() -> dict[str, Any]:
    """Return the bundled standard building as plain data."""
    data: dict[str, Any] = read_file(config_folders()[-1] / STANDARD_FILE).data
    return data


def quick_job(start: Start, folder: Path | None = None) -> dict[str, Any]:
    """Return the job's mapping with its topology in full; a relative model path starts at ``folder``.

    Raises:
        InputError: an argument that cannot be read, or two buildings without a link between them.
    """
    length, tokens = _tokens(start.sequence, "--seq"), _tokens(start.tokens, "--tokens")
    if length < 1 or tokens < length or tokens % length:
        near = max(1, round(tokens / max(1, length))) * max(1, length)
        raise InputError(
            f"--tokens {start.tokens} = {tokens:,} is no multiple of --seq {start.sequence} = {length:,}; nearest: {near:,}"
        )
    job = {
        "name": "quick-start",
        "workload": _model(start.model, folder),
        "topology": _topology(start, folder),
        "sequence_length": length,
        "global_batch_tokens": tokens,
    }
    if start.slurm:
        job["slurm"] = dict(start.slurm)
    if start.target is None:
        return job
    if "target" not in Job.model_fields:
        raise InputError(
            "--target: jobs of this version name no target; leave it out and emit with --emit or 'scaleacross emit'"
        )
    return {**job, "target": start.target}


def _topology(start: Start, folder: Path | None) -> str | dict[str, Any]:
    if start.topology is None:
        return quick_topology(start.gpus or "", start.trunk, start.km)
    if (start.gpus, start.trunk, start.km) != (None, None, None):
        raise InputError(
            "--topology states accelerators and links: leave --gpus, --trunk and --km out, or change the file"
        )
    return str(find("topologies", start.topology, folder).resolve())


def _model(ref: str, folder: Path | None) -> str:
    path = find("workloads", ref, folder)
    return path.stem if path in dict(names("workloads")).values() else str(path.resolve())


def quick_topology(gpus: str, trunk: str | None, km: float | None) -> dict[str, Any]:
    """Return a topology's mapping: a standard building for each part of ``gpus``, and a link between every two.

    Raises:
        InputError: an argument that cannot be read, or two buildings without a link between them.
    """
    buildings = [_building(text.strip(), index) for index, text in enumerate(gpus.split(","))]
    if len(buildings) > MAX_BUILDINGS:
        raise InputError(
            f"--gpus: {len(buildings)} buildings; at most {MAX_BUILDINGS} are written this way, more in a topology file"
        )
    link = standard_link(trunk, km, len(buildings))
    far = link is not None and link.km > standard()["max_campus_km"]
    regions = [[building] for building in buildings] if far else [buildings]
    return {
        "name": "quick-start",
        "description": "standard buildings (every figure inside them is assumed): "
        + " and ".join(text.strip() for text in gpus.split(","))
        + (f", {link.text} over {link.km:g} km, {link.one_way_latency_us:g} us one way" if link else ""),
        "regions": [{"name": f"region-{number}", "buildings": part} for number, part in enumerate(regions, 1)],
        "trunks": links_between([str(building["name"]) for building in buildings], link),
        "provenance": provenance(link),
    }


def links_between(buildings: list[str], link: StandardLink | None) -> list[dict[str, Any]]:
    """Links between every two buildings, as a topology file states them; an empty list without ``link``."""
    if link is None:
        return []
    figures = {"bandwidth_gbit_per_s": link.bytes_per_s * 8 / 1e9, "one_way_latency_us": link.one_way_latency_us}
    return [{"between": list(pair), **figures} for pair in combinations(buildings, 2)]


def provenance(link: StandardLink | None) -> dict[str, dict[str, str]]:
    """Origin of every figure of a topology of standard buildings."""
    known = {key: value for key, value in standard()["provenance"].items() if key.startswith("links.")}
    if link is None:
        return known
    fibre = standard()["provenance"]["fibre_us_per_km"]["source"]
    return known | {
        "trunks.bandwidth_gbit_per_s": {"source": f"stated by the user: {link.text}", "status": "assumed"},
        "trunks.one_way_latency_us": {
            "source": f"{link.km:g} km stated by the user, {fibre}; and the latency of a standard building",
            "status": "assumed",
        },
    }


def standard_link(trunk: str | None, km: float | None, num_buildings: int) -> StandardLink | None:
    """Return the link between every two buildings; None for one building. Raises InputError if it is not stated."""
    if num_buildings < 2:
        if trunk is not None or km is not None:
            raise InputError(
                "--trunk and --km state the link between buildings, and there is one building: name the others too, or "
                "leave both out"
            )
        return None
    if trunk is None or km is None:
        raise InputError(
            f"{num_buildings} buildings: state the link between them, e.g. --trunk 4x400G --km 50 "
            "(rate per direction of every two buildings, length of the fibre)"
        )
    if not 0 <= km <= MAX_KM:
        raise InputError(f"--km {km:g}: a length from 0 to {MAX_KM:,.0f} km is expected")
    return StandardLink(trunk, bytes_per_s(trunk), km)


def bytes_per_s(text: str) -> float:
    """Convert a rate as operators write it (``4x400G``, ``1.6T``) to bytes/s. Raises InputError."""
    hit = _RATE.fullmatch(text.strip())
    rate = 0.0 if hit is None else int(hit[1] or 1) * float(hit[2]) * {"G": 1e9, "T": 1e12}[hit[3].upper()] / 8
    if _BYTE_RATE.fullmatch(text.strip()):
        raise InputError(
            f"--trunk {text[:40]!r}: this counts bytes; write bits per second, 8 times the number, e.g. 4x400G"
        )
    if not 0 < rate < 1e18:
        raise InputError(f"--trunk {text[:40]!r}: write COUNTxRATE in bits per second, e.g. 4x400G or 1.6T")
    return rate


def _tokens(text: str, option: str) -> int:
    try:
        return parse_tokens(text)
    except ValueError as error:
        raise InputError(f"{option} {error}") from None


def _building(text: str, index: int) -> dict[str, Any]:
    hit = _GPUS.fullmatch(text)
    if hit is None:
        raise InputError(
            f"--gpus {text[:60]!r}: write TYPE:COUNT for each building, e.g. h100:512,h100:256 or east=h100:512"
        )
    name, count = hit[1] or f"building-{chr(ord('a') + index % 26)}", int(hit[3][:12])
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise InputError(f"--gpus: {name[:64]!r} is no name of a building: use letters, digits, '.', '_' and '-'")
    building = standard_building(hit[2], "--gpus")
    per_host = min(count, int(building["accelerators_per_host"]))  # fewer than a full host has: one smaller host
    if not count or count % per_host:
        per_host = int(building["accelerators_per_host"])
        near = max(1, round(count / per_host)) * per_host
        raise InputError(
            f"--gpus {text}: {count:,} is no multiple of the {per_host} accelerators of a host; nearest: {near:,}"
        )
    return {"name": name, "num_hosts": count // per_host, **building, "accelerators_per_host": per_host}


def standard_building(accelerator: str, option: str) -> dict[str, Any]:
    """Return a standard building's mapping, without name and size, for an accelerator.

    Args:
        accelerator: a standard type (``h100``), its entry's name, or what a driver prints (``NVIDIA H100 80GB HBM3``).
        option: what the user wrote it for, named in errors.

    Raises:
        InputError: no standard building has this type.
    """
    kinds: dict[str, dict[str, Any]] = standard()["accelerators"]
    alias = accelerator.strip().lower()
    kind = kinds.get(alias) or next((one for one in kinds.values() if one["entry"] == alias), None)
    if kind is None and (named := standard_type(alias, standard(), only_known_words=True)):
        kind = kinds[named]
    if kind is None:
        advice = unsupported([accelerator]) or nearest(alias, kinds, "type", "types")
        raise InputError(f"{option}: no standard building of '{accelerator[:40]}'; {advice}")
    base = standard()["building"]
    technologies = {"scale_up": kind["scale_up"]}
    links = {
        level: {"technology": technologies.get(level, kind["scale_out"]), **figures}
        for level, figures in base["links"].items()
    }
    own = {key: value for key, value in kind.items() if key not in ("entry", "names", "scale_up", "scale_out")}
    return {"accelerator": kind["entry"], **base, **own, "links": links}


def unsupported(names: Iterable[str]) -> str:
    """Why the first of ``names`` that is known to have no standard building has none, and the way out.

    It is empty if no name is one of a family that is not modelled, or of a type without bf16.
    """
    words = [(name, set(re.findall(r"[a-z0-9]+", name.lower()))) for name in names]
    for name, own in words:
        for family in standard()["not_modelled"]:
            if own.intersection(family["types"]):
                return (
                    f"{family['what']} are not modelled: these form a torus, where neighbours share links that no level of "
                    "a topology states, and their compilers choose the collectives (docs/model.md, Accelerators)"
                )
        if own.intersection(standard()["without_bf16"]):
            return (
                f"{name[:40]} has no bf16, in which a job trains unless it says otherwise: state fp16 in an accelerator's file "
                "of your own (peak_tflop_per_s: {fp16: ...}), name it in a topology's file, and set precision: fp16 in the job"
            )
    return ""


JOB_FILE: Final = "job.yaml"
TOPOLOGY_FILE: Final = "topology.yaml"


def quick_files(start: Start) -> dict[str, str]:
    """Return file name -> text of ``job.yaml`` and ``topology.yaml`` with comments for editing. Raises InputError."""
    job = quick_job(start)
    if isinstance(job["topology"], str):
        return {JOB_FILE: _job_text({**job, "name": "job"})}
    # the figures follow in the file and will be edited: a description that repeats them would soon be wrong
    described = "begun by scaleacross init with standard buildings; show topology counts the figures that are assumed"
    topology = {**job["topology"], "name": "topology", "description": described}
    return {
        JOB_FILE: _job_text({**job, "name": "job", "topology": TOPOLOGY_FILE}),
        TOPOLOGY_FILE: topology_text(topology),
    }


def _job_text(job: dict[str, Any]) -> str:
    lines = [entry_text({key: value}).rstrip() for key, value in job.items()]
    return "\n".join([_JOB_HEAD.rstrip(), *lines, _JOB_TAIL.rstrip(), ""])


def topology_text(topology: dict[str, Any], comment: str = "") -> str:
    """Return a topology's mapping as a commented YAML file."""
    return _TOPOLOGY_HEAD + "".join(f"# {line}\n" for line in comment.splitlines()) + entry_text(topology)


_JOB_HEAD: Final = """
# A job of scaleacross: what is trained, on what. Plan it with: scaleacross plan job.yaml -o build/
# `scaleacross schema job` lists every key.
""".lstrip()

_JOB_TAIL: Final = """
# degrees: {tp: 8, pp: {min: 8, max: 32}}   # pin or bound any axis: tp, cp, pp, ep, dp_shard, dp_replicate
# num_accelerators: 512                     # exactly so many, or {min, max}; default: as many as pay
# objective: step_time                      # or (useful_)tokens_per_s_per_megawatt, ...
# spare_hosts: {building-a: 4}              # hosts held back for repairs
# slurm: {partition: h100, account: ai, time: 2-00}   # lines of slurm.sbatch; also container, extra
# precision: bf16                           # or fp8, where the accelerator states a peak for it
# recompute: [none, selective, full]        # what the search may choose from; modules adds every set of Megatron's modules
"""

_TOPOLOGY_HEAD: Final = """
# A topology of scaleacross. Inside the buildings every link figure is that of a standard building: replace what you know.
# Units are part of a key: one_way_latency_us or _ms, bandwidth_gbit_per_s, _tbit_per_s or _gbyte_per_s.
# Real host names: add `hosts: node[001-064]` (or a list) to a building instead of num_hosts.
# `provenance` says where each figure comes from; `scaleacross show topology FILE` counts what is assumed.
""".lstrip()
