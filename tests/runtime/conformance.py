"""torch's own tests of ``torch.distributed`` (``distributed_test``, which its wheel ships) on backend ``scaleacross``.

``python tests/runtime/conformance.py`` runs all of them, on gloo and on planned schedules, and prints what only gloo passes.
``test_conformance.py`` runs a part of them. Three processes run one test after the other, each with a default group of its own:
torch's way starts three processes per test, which costs ten times as much.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rank_pool import RankPool

WORLD: Final = 3
LIMIT_S: Final = 60.0
START_S: Final = 300.0
GROUP_LIMIT_S: Final = 40.0
PLANNED: Final = {
    "all_reduce": "ring",
    "all_gather": "ring",
    "reduce_scatter": "direct",
    "all_to_all": "pairwise",
    "broadcast": "chain",
}
SLOW: Final = ("test_ddp_uneven_inputs", "test_monitored_barrier_allreduce_hang")
BY_NAME: Final = {
    "test_get_backend": "expects the name gloo",
    "test_ddp_logging_data_cpu": "expects one name where init_process_group says cpu:scaleacross and DDP scaleacross",
    "test_monitored_barrier_gloo": "dist.monitored_barrier refuses every backend that is not called gloo",
    "test_monitored_barrier_gloo_rank_0_timeout": "the same",
    "test_monitored_barrier_gloo_subgroup": "the same",
    "test_monitored_barrier_wait_all_ranks": "the same",
    "test_monitored_barrier_failure_order": "the same",
}
"""Tests that say nothing about scaleacross, with the reason."""


def load() -> Any:
    """The suite for ``BACKEND``.

    Its first import reads ``BACKEND``, which selects gloo's tests for any backend.
    """
    os.environ["BACKEND"] = "gloo"
    os.environ.setdefault("WORLD_SIZE", str(WORLD))
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        pass

    return distributed_test, Suite


def names() -> list[str]:
    """All tests."""
    _, suite = load()
    return sorted(name for name in dir(suite) if name.startswith("test_"))


def run_one(rank: int, name: str, backend: str, folder: str) -> tuple[str, str]:
    """One test on one rank: ("ok" | "skip" | "fail", why)."""
    import unittest

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    module, suite = load()
    os.environ["TEMP_DIR"] = folder
    os.environ.pop("TORCH_SHOW_CPP_STACKTRACES", None)
    module.Barrier.barrier_id = 0
    if backend != "gloo":
        _plan_everything()
    case = suite(name)
    case.rank, case.file_name = rank, f"{folder}/rendezvous"
    if getattr(getattr(suite, name), "__unittest_skip__", False):
        return "skip", "skipped by torch"
    dist.init_process_group(
        backend, init_method=case.init_method, world_size=WORLD, rank=rank, timeout=timedelta(seconds=GROUP_LIMIT_S)
    )
    module.common_utils.set_rng_seed() if hasattr(module, "common_utils") else torch.manual_seed(1234)
    try:
        case._barrier()
        getattr(case, name)()
        case._barrier()
    except unittest.SkipTest as skipped:
        return "skip", str(skipped)
    except SystemExit as end:
        return "skip", f"exit code {end.code}"
    except BaseException:
        return "fail", traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "ok", ""


def _ready(rank: int) -> int:
    """Import torch and the suite, which takes longer than most tests."""
    import scaleacross.runtime  # noqa: F401

    load()
    return rank


def _plan_everything() -> None:
    """Groups run planned schedules, without a launch file."""
    from scaleacross.runtime import process_group
    from scaleacross.runtime.communicator import LinkSettings
    from scaleacross.runtime.policy import fixed
    from scaleacross.schedules.collective import Operation

    algorithms = {Operation(operation): algorithm for operation, algorithm in PLANNED.items()}
    planned = lambda ranks, settings: fixed(algorithms, tuple(range(len(ranks))), LinkSettings())  # noqa: E731
    process_group.launch_policy = planned  # type: ignore[assignment]


def run(tests: Sequence[str], backend: str) -> Iterator[tuple[str, str, str]]:
    """(test, worst outcome of the ranks, why) one after the other; ranks that hang are killed and started anew."""
    pool: RankPool | None = None
    try:
        for name in tests:
            if pool is None:
                pool = RankPool(WORLD, {"BACKEND": "gloo"})
                pool.run(_ready, limit_s=START_S)
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                for part in ("barrier", "test_dir", "init_dir"):
                    (Path(folder) / part).mkdir()
                try:
                    outcomes = pool.run(run_one, name, backend, folder, limit_s=LIMIT_S)
                except AssertionError as error:
                    pool = None
                    yield name, "fail", str(error)
                    continue
            worst = next((one for word in ("fail", "skip") for one in outcomes if one[0] == word), ("ok", ""))
            if worst[0] == "fail":
                pool.close()  # keeps what a failed test leaves from the next test
                pool = None
            yield name, *worst
    finally:
        if pool is not None:
            pool.close()


def main() -> int:
    """Compare both backends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="tests (all)")
    parser.add_argument("--only", choices=("gloo", "scaleacross"), help="one backend")
    parser.add_argument("--verbose", action="store_true", help="print why a test fails")
    arguments = parser.parse_args()
    chosen = arguments.names or [name for name in names() if not name.startswith(SLOW)]
    found: dict[str, dict[str, str]] = {}
    for label, backend in (("gloo", "gloo"), ("scaleacross", "cpu:scaleacross")):
        if arguments.only not in (None, label):
            continue
        tests = chosen if label == "gloo" or "gloo" not in found else [n for n in chosen if found["gloo"][n] == "ok"]
        found[label] = {}
        for name, outcome, why in run(tests, backend):
            found[label][name] = outcome
            last = why.strip().splitlines()[-1][:160] if why.strip() else ""
            print(f"{label:12s} {outcome:5s} {name} {last}", flush=True)
            if arguments.verbose and outcome == "fail":
                print(why, flush=True)
    if len(found) < 2:
        return 0
    behind = [name for name, outcome in found["scaleacross"].items() if outcome == "fail" and name not in BY_NAME]
    passed = sum(outcome == "ok" for outcome in found["scaleacross"].values())
    print(
        f"gloo passes {sum(o == 'ok' for o in found['gloo'].values())}, scaleacross {passed} of these; behind: {behind}"
    )
    return 1 if behind else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
