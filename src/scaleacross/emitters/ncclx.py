"""Target ``ncclx``: files that NCCLX and NCCL's tuner plugin read in addition to the environment of target ``nccl``.

* ``ncclx/topology/<host>.conf``   one per host, for ``NCCL_TOPO_FILE_PATH``: building, zone and rack. NCCLX derives from it the
                                   distance class of every connection (same zone, same building, other building)
* ``ncclx/comm_hints.json``        axis -> hints for its communicators: the plan's algorithm where CTRAN has it
* ``ncclx/ncclx_tuner.csv``        the same for the ring and tree of NCCL proper; ``nccl_tuner.conf`` is its twin for the plugin
* ``ncclx/ncclx.env``              where the files are, and the time from which a collective counts as slow
* ``ncclx/explain.md``             the reason of every line, and the decisions that no file can state

Names and grammars: torchcomms 59426ba4 and NCCL 2.31, as in ``nccl`` and ``tuner_grammar``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from scaleacross.emitters.crossed_levels import axes_over_sockets
from scaleacross.emitters.group_settings import (
    by_engines,
    class_variable,
    connection_hints,
    not_expressed,
    overlap_variables,
)
from scaleacross.emitters.launch import launch_config
from scaleacross.emitters.libraries import require_nccl
from scaleacross.emitters.nccl_variables import HINTS, check_variable
from scaleacross.emitters.tuner_grammar import TunerRow, catch_all, nccl_text, ncclx_text
from scaleacross.spec.launch import EnvVariable, LaunchConfig, LaunchHost, ProcessGroups
from scaleacross.spec.network_choice import MOVES
from scaleacross.spec.parallelism import Axis
from scaleacross.spec.plan import Plan, PredictedCollective
from scaleacross.targets import TARGETS, target_of
from scaleacross.targets.law import Target
from scaleacross.units import human_bytes, human_seconds

FOLDER: Final = "ncclx"
# torchcomms 59426ba4, NcclxConfig.h: hints of NCCLX have this prefix; others are warned about and ignored.
NCCLX_PREFIX: Final = "ncclx::"
# torchcomms 59426ba4: NCCL_<X>_ALGO values and the hint of each operation.
HINT_OF: Final = {
    "all_gather": ("allgatherAlgo", {"ring": "ctring", "hierarchical": "cthierarchical_ring"}),
    "all_reduce": ("allreduceAlgo", {"ring": "ctring", "hierarchical": "cthierarchical_ring", "tree": "ctree"}),
    "all_to_all": ("alltoallAlgo", {"pairwise": "ctran"}),
    "send": ("sendrecvAlgo", {"point_to_point": "ctp2p"}),
}
WINDOWED: Final = "ctwin"
"""Algorithm for a buffer in a symmetric window: rails between hosts, copy engines inside (NCCL_ALLGATHER_P_ALGO
ctpipeline, its default).
"""
TUNED: Final = {"all_gather": "allgather", "all_reduce": "allreduce", "reduce_scatter": "reducescatter"}
TUNED_ALGORITHMS: Final = ("ring", "tree")
# assumed: a size within this factor of the predicted one is the same collective.
SIZE_RATIO: Final = 4
# assumed: several times the predicted time is a fault rather than jitter.
SLOW_RATIO: Final = 5
MIN_SLOW_MS: Final = 100


def render(plan: Plan) -> dict[str, str]:
    """Return the text of all files of the target.

    Raises:
        EmitError: the plan's accelerators do not run NCCL.
    """
    require_nccl(plan, "ncclx")
    config = launch_config(plan)
    rows = _apart([row for group in config.process_groups for row in _tuner_rows(config, group)])
    target = target_of(plan.job) or TARGETS["scaleacross"]
    sockets = axes_over_sockets(plan)
    hints = {group.axis: _hints(group, group.axis in sockets) for group in config.process_groups}
    settings = _environment(config, target, bool(rows), overlap_variables(plan))
    files = {
        "comm_hints.json": json.dumps({axis: hint for axis, hint in hints.items() if hint}, indent=2) + "\n",
        "ncclx_tuner.csv": ncclx_text(rows),
        "nccl_tuner.conf": nccl_text([*rows, *catch_all()] if rows else []),
        "ncclx.env": _env_text(config, settings),
        "explain.md": _explanation(config, rows, hints, settings) + _more_explained(plan, config.process_groups, hints),
    }
    files |= {f"topology/{host.name}.conf": _topology(host) for host in config.hosts}
    return {f"{FOLDER}/{name}": text for name, text in files.items()}


def _topology(host: LaunchHost) -> str:
    """Return a host's topology file with building / zone / scaling unit / rack switch.

    Peers in one zone share the first two parts, peers in one building the first.
    """
    where = f"{host.building}/z{host.zone}//r{host.rack}"
    return (
        f"DEVICE_NAME={host.name}\n"
        f"DEVICE_BACKEND_NETWORK_TOPOLOGY={where}\n"
        f"DEVICE_RACK_SERIAL={f'{host.building}-z{host.zone}-r{host.rack}'[-63:]}\n"
    )


def _hints(group: ProcessGroups, sockets: bool) -> dict[str, str]:
    """Return hints of an axis whose groups leave the scale-up domain; within one, NCCL chooses itself.

    A communicator has one hint for all its collectives of a kind, so the collective that takes most of a step decides
    it.
    """
    if group.level == "scale_up":
        return {}
    if sockets:
        return connection_hints(group, sockets)  # CTRAN's algorithms run on RDMA only
    hints = {}
    for collective in sorted(group.collectives, key=lambda one: one.time_s * one.per_step):  # most of the step decides
        hint, algorithms = HINT_OF.get(collective.op, ("", {}))
        if collective.op in MOVES and _by_engines(group, collective):
            hints[hint] = WINDOWED
        elif collective.algorithm in algorithms:
            hints[hint] = algorithms[collective.algorithm]
    return {NCCLX_PREFIX + hint: value for hint, value in hints.items()} | connection_hints(group, sockets)


def _by_engines(group: ProcessGroups, collective: PredictedCollective) -> bool:
    """Return whether the plan decided copy engines for a collective."""
    key = collective.op, collective.name.partition(" of ")[2]
    return any(by_engines(one) for one in group.network if (one.op, one.payload) == key)


def _tuner_rows(config: LaunchConfig, group: ProcessGroups) -> Iterator[TunerRow]:
    """Yield a rule per collective whose algorithm NCCL has by that name.

    The grammar requires equally many ranks per host.
    """
    hosts = {frozenset(_ranks_per_host(config, ranks)) for ranks in group.ranks}
    if len(hosts) != 1 or len(local := next(iter(hosts))) != 1:
        return
    num_nodes = group.degree // next(iter(local))
    seen: set[tuple[str, float]] = set()
    for collective in group.collectives:
        key = (collective.op, collective.bytes_per_rank)
        if collective.op in TUNED and collective.algorithm in TUNED_ALGORITHMS and key not in seen:
            seen.add(key)
            size = collective.bytes_per_rank
            span = (int(size / SIZE_RATIO), math.ceil(size * SIZE_RATIO))
            yield TunerRow(
                TUNED[collective.op],
                *span,
                collective.algorithm,
                "simple",
                num_nodes,
                group.degree,
                _channels(group, collective),
            )


def _channels(group: ProcessGroups, collective: PredictedCollective) -> int:
    """Return the channels that the plan decided for a collective; -1 where it decided none."""
    payload = collective.name.partition(" of ")[2]
    decided = [one.num_channels for one in group.network if (one.op, one.payload) == (collective.op, payload)]
    return max(decided, default=0) or -1


def _apart(rows: Sequence[TunerRow]) -> list[TunerRow]:
    """Make the size ranges of rows with the same collective and shape disjoint.

    Each range ends where the next size is nearer by ratio. Among rows for the same size, the one with most channels
    stays.
    """
    kinds: dict[tuple[str, int, int], dict[int, TunerRow]] = {}
    for row in rows:
        known = kinds.setdefault((row.collective, row.num_nodes, row.num_ranks), {})
        size = row.min_bytes * SIZE_RATIO
        if size not in known or known[size].channels < row.channels:
            known[size] = row
    out = []
    for known in kinds.values():
        sizes = sorted(known)
        for index, size in enumerate(sizes):
            low, high = known[size].min_bytes, known[size].max_bytes
            # the geometric mean of two sizes is equally near to both by ratio
            if index and (edge := math.isqrt(sizes[index - 1] * size)) >= low:
                low = edge + 1
            if index + 1 < len(sizes):
                high = min(high, math.isqrt(size * sizes[index + 1]))
            out.append(known[size]._replace(min_bytes=low, max_bytes=high))
    return out


def _ranks_per_host(config: LaunchConfig, ranks: tuple[int, ...]) -> list[int]:
    counts: dict[int, int] = {}
    for rank in ranks:
        host = config.ranks[rank][0]
        counts[host] = counts.get(host, 0) + 1
    return list(counts.values())


def slow_ms(collectives: tuple[PredictedCollective, ...]) -> int:
    """Return the milliseconds at which a collective counts as slow: max(MIN_SLOW_MS, SLOW_RATIO × longest prediction)."""
    return max(MIN_SLOW_MS, math.ceil(SLOW_RATIO * 1e3 * max((one.time_s for one in collectives), default=0.0)))


def _environment(config: LaunchConfig, target: Target, tuned: bool, more: list[EnvVariable]) -> list[EnvVariable]:
    """Return the checked variables with their reasons; groups have the names that the target gives them."""
    slow = {group.axis: slow_ms(group.collectives) for group in config.process_groups}
    thresholds = ",".join(f"{name}:{ms}" for axis, ms in slow.items() for name in target.group_names(axis))
    out = [
        EnvVariable(
            name="NCCL_TOPO_FILE_PATH",
            value="${NCCLX_DIR}/topology/${HOSTNAME}.conf",
            why="without it every peer counts as near and the settings for far peers never act",
        ),
        EnvVariable(
            name="NCCL_LAZY_SETUP_CHANNELS",
            value="true",
            why=f"{config.world_size:,} ranks: channels are made when a collective first needs them",
        ),
    ]
    if tuned:
        why = f"rules for messages within a factor {SIZE_RATIO} of the predicted size"
        out.append(EnvVariable(name="NCCLX_TUNER_CONFIG_FILE", value="${NCCLX_DIR}/ncclx_tuner.csv", why=why))
    if thresholds:
        why = f"ms; {SLOW_RATIO} × the longest prediction of the group, at least {MIN_SLOW_MS} ms"
        out.append(EnvVariable(name="NCCL_COLLTRACE_SLOW_COLL_THRESHOLD_BY_PG", value=thresholds, why=why))
    out += [*class_variable(config.process_groups, target), *more]
    for variable in out:
        check_variable(variable)
    return out


def _env_text(config: LaunchConfig, settings: list[EnvVariable]) -> str:
    lines = [
        f"# NCCLX settings of plan {' '.join(config.plan_name.split())}, in addition to nccl.env; the reasons are in explain.md.",
        "# Wire it in with bash: export NCCLX_DIR=/absolute/path/of/this/folder; set -a; source ncclx.env; set +a",
        "# Stock NCCL with its example tuner plugin reads nccl_tuner.conf instead:",
        "# NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=${NCCLX_DIR}/nccl_tuner.conf",
        *(f"{variable.name}={variable.value}" for variable in settings),
    ]
    return "\n".join(lines) + "\n"


def _explanation(
    config: LaunchConfig, rows: list[TunerRow], hints: Mapping[Axis, dict[str, str]], settings: list[EnvVariable]
) -> str:
    lines = [
        f"# NCCLX files of plan {' '.join(config.plan_name.split())}",
        "",
        f"{len(config.hosts):,} topology files, {len(rows)} tuner rules.",
        "",
        "| variable | value | why |",
        "|---|---|---|",
        *(f"| {variable.name} | `{variable.value}` | {variable.why} |" for variable in settings),
        "",
        "| group | collective | size | predicted | algorithm of the plan | said by |",
        "|---|---|---|---|---|---|",
    ]
    for group in config.process_groups:
        for one in group.collectives:
            lines.append(
                f"| {group.axis} × {group.degree} over {group.level} | {one.op} | {human_bytes(one.bytes_per_rank)} "
                f"| {human_seconds(one.time_s)} | {one.algorithm} | {_said_by(group, one, hints[group.axis], rows)} |"
            )
    return "\n".join(lines) + "\n"


def _more_explained(plan: Plan, groups: Sequence[ProcessGroups], hints: Mapping[Axis, dict[str, str]]) -> str:
    """Return hints of connections with the choice that each comes from, and decisions that no file can state."""
    lines = []
    for group in groups:
        own = {name: value for name, value in hints[group.axis].items() if name in HINTS or name == "splitShare"}
        if own:
            of = ", ".join(choice.payload for choice in group.network if choice.connections)
            stated = ", ".join(f"{name}={value}" for name, value in own.items())
            lines.append(f"* {group.axis}: {stated}: the most that was decided for any of {of}.")
    cannot = not_expressed(plan.decision.network or (), plan)
    parts = [["", "Hints of connections:", "", *lines]] if lines else []
    parts += (
        [["", "Decided, and beyond what these files can say:", "", *(f"* {line}" for line in cannot)]] if cannot else []
    )
    return "".join("\n".join(part) + "\n" for part in parts)


def _said_by(group: ProcessGroups, one: PredictedCollective, hints: dict[str, str], rows: list[TunerRow]) -> str:
    hint, algorithms = HINT_OF.get(one.op, ("", {}))
    said = []
    hint = NCCLX_PREFIX + hint
    if hints.get(hint) == WINDOWED and one.op in MOVES:
        return f"hint {hint}={WINDOWED}, if its buffer is in a symmetric window"
    if hint in hints and one.algorithm in algorithms:
        other = "" if hints[hint] == algorithms[one.algorithm] else ", which another of its collectives has for both"
        said.append(f"hint {hint}={hints[hint]}{other}")
    if any(
        row.collective == TUNED.get(one.op) and row.num_ranks == group.degree and row.algorithm == one.algorithm
        for row in rows
    ):
        said.append("tuner")
    return ", ".join(said) or (
        "nothing: inside one domain NCCL chooses" if group.level == "scale_up" else "nothing: no setting for it"
    )
