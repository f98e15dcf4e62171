"""Says which plans the testbed trains, as far as a launch file tells."""

from __future__ import annotations

from typing import Final

from scaleacross.spec.launch import LaunchConfig
from scaleacross.spec.parallelism import REDUCED_EVERY_PASS

SCHEDULES: Final = ("GPipe", "1F1B")


def why_untrainable(launch: LaunchConfig) -> str | None:
    """Return the parts of a plan that the testbed does not train, with the way out; None if it trains all of it."""
    problems = [f"{axis} {launch.degrees.of(axis)}" for axis in ("tp", "cp", "ep") if launch.degrees.of(axis) > 1]
    if launch.degrees.pp > 1 and launch.pipeline.schedule not in SCHEDULES:
        problems.append(f"schedule {launch.pipeline.schedule}")
    if launch.shard in REDUCED_EVERY_PASS:
        problems.append(f"shard {launch.shard}")
    if launch.replica_batches:
        problems.append("replicas with different batches")
    if not problems:
        return None
    return (
        f"the testbed does not train {', '.join(problems)}: plan with degrees {{tp: 1, cp: 1}}, "
        f"schedules [{', '.join(SCHEDULES)}], shard [none, optimizer]"
    )
