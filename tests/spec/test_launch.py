"""The launch contract refuses inconsistent files."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from scaleacross.spec.launch import RANK_COLUMNS, LaunchConfig, LaunchHost, ProcessGroups, rank_groups
from scaleacross.spec.parallelism import Degrees

DEGREES = Degrees(tp=2, dp_shard=2, ep=2)
# host, local, pp, dp_replicate, dp_shard, cp, tp, ep: tp fastest, two processes per host
ROWS = ((0, 0, 0, 0, 0, 0, 0, 0), (0, 1, 0, 0, 0, 0, 1, 0), (1, 0, 0, 0, 1, 0, 0, 1), (1, 1, 0, 0, 1, 0, 1, 1))


def groups(axis: str, *ranks: tuple[int, ...]) -> ProcessGroups:
    level = "scale_up" if axis == "tp" else "zone"
    return ProcessGroups(axis=axis, degree=2, level=level, ranks=ranks, levels=(level,) * len(ranks), collectives=())


def far(level: str, *levels: str) -> dict[str, object]:
    """A file that states other levels for its dp_shard groups."""
    own = config().process_groups
    return {"process_groups": (own[0], own[1].model_copy(update={"level": level, "levels": levels}), own[2])}


def config(**changes: object) -> LaunchConfig:
    hosts = tuple(LaunchHost(name=f"h{k}", region="r", building="b", zone=0, rack=k, num_ranks=2) for k in range(2))
    fields = {
        "plan_name": "p", "plan_sha256": "0" * 64, "world_size": 4, "degrees": DEGREES,
        "axis_order": ("tp", "cp", "dp_shard", "dp_replicate", "pp"), "sequence_length": 8, "global_batch_sequences": 2,
        "num_micro_batches": 1, "pipeline": {"schedule": "1F1B"}, "layers_per_stage": ((4,),), "recompute": "none",
        "shard": "optimizer", "precision": "bf16", "optimizer": {}, "predicted_step_s": 1.0, "hosts": hosts, "ranks": ROWS,
        "process_groups": (groups("tp", (0, 1), (2, 3)), groups("dp_shard", (0, 2), (1, 3)), groups("ep", (0, 2), (1, 3))),
        **changes,
    }  # fmt: skip
    return LaunchConfig.model_validate(fields)


def test_a_consistent_config_answers_for_every_rank() -> None:
    launch = config()
    assert launch.groups("tp") == [[0, 1], [2, 3]]
    assert launch.groups("pp") == [[0], [1], [2], [3]]  # degree 1: every rank alone
    assert launch.group_of("dp_shard", 3) == [1, 3]
    assert launch.host(3).name == "h1"
    assert launch.coordinates(3) == {"tp": 1, "cp": 0, "dp_shard": 1, "dp_replicate": 0, "pp": 0, "ep": 1}


def test_json_round_trip_and_schema() -> None:
    launch = config()
    assert LaunchConfig.model_validate_json(launch.model_dump_json()) == launch
    schema = LaunchConfig.model_json_schema()
    assert schema["properties"]["schema_version"]["const"] == 1
    assert set(schema["required"]) >= {"hosts", "ranks", "process_groups", "plan_sha256"}


UNEQUAL = {"buildings": ("b",), "replicas": (0, 1), "num_micro_batches": 1, "gradient_weight": 1.0}


def _with(row: int, column: str, value: int) -> tuple[tuple[int, ...], ...]:
    out = [list(r) for r in ROWS]
    out[row][RANK_COLUMNS.index(column)] = value
    return tuple(tuple(r) for r in out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 5}, "sizes disagree: world_size 5, degrees 4"),
        ({"ranks": ROWS[:3]}, "rows of ranks 3"),
        ({"ranks": _with(3, "local", 0)}, "left out, doubled or unknown"),
        ({"ranks": _with(3, "host", 7)}, "left out, doubled or unknown"),
        ({"ranks": _with(3, "tp", 0)}, "two ranks have the same coordinates"),
        ({"ranks": _with(3, "tp", 2)}, "coordinate 2 on tp is outside 0..1"),
        ({"ranks": _with(3, "ep", 0)}, "modulo ep 2"),
        ({"process_groups": ()}, "one entry for each of"),
        ({"process_groups": (groups("tp", (0, 2), (1, 3)), *config().process_groups[1:])}, "do not follow"),
        ({"process_groups": (groups("tp", (1, 0), (2, 3)), *config().process_groups[1:])}, "do not follow"),
        (far("rack", "rack", "rack"), "dp_shard: rank 0's group crosses zone, and rack is stated"),
        (far("scale_up", "zone", "scale_up"), "dp_shard: rank 1's group crosses zone, and scale_up is stated"),
        (far("campus", "zone", "zone"), "level campus is not the outermost"),
        ({"rank_columns": ("host",)}, "rank_columns of schema 1"),
        ({"layers_per_stage": ((4,), (4,))}, "1 lists of 1 numbers are needed"),
        ({"layers_per_stage": ((2, 2),)}, "1 lists of 1 numbers are needed"),
        ({"num_micro_batches": 2}, "are 4 sequences a step, global_batch_sequences 2"),
        ({"global_batch_sequences": 3}, "are 2 sequences a step, global_batch_sequences 3"),
        (
            {"replica_batches": ({**UNEQUAL, "num_micro_batches": 2},)},
            "are 4 sequences a step, global_batch_sequences 2",
        ),
        ({"schema_version": 2}, "Input should be 1"),
        ({"plan_sha256": "abc"}, "should match pattern"),
    ],
)
def test_what_does_not_hold_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**changes)


def test_ep_groups_are_runs_of_dp_shard() -> None:
    rows = tuple((0, rank, 0, 0, rank, 0, 0, rank % 2) for rank in range(6))
    assert rank_groups(rows, "ep", Degrees(dp_shard=6, ep=2)) == ((0, 1), (2, 3), (4, 5))
