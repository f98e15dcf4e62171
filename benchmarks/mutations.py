"""Which errors does the test suite see? Thirty hand-made ones in cost models, bounds, simulation and verification.

    python benchmarks/mutations.py                # every mutation against the tests of its area
    python benchmarks/mutations.py memory_zero    # some by name
    python benchmarks/mutations.py --all          # against everything that make test runs (hours)

Each is applied in a copy of the repository and tested there with ``-x``: a failing test kills it. The bar is 27 of 30. A mutation
whose text is gone, or stands there more than once, is stale; tests/test_mutations.py fails then. The four named ``SEEDED`` are
the faults that must be seen by code that does not share the line at fault: their tests are counts, textbook figures and the
simulation, which reads the topology by itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = Path("src") / "scaleacross"
COPIED = ("src", "tests", "configs", "benchmarks", "docs", "examples", "pyproject.toml", "README.md", "CONTRIBUTING.md")
TIMEOUT_S = 1800
"""A mutation that makes the tests run for longer counts as killed: whoever runs the suite notices."""


class Mutation(NamedTuple):
    """One error: ``old`` stands exactly once in ``file`` (of the package), and becomes ``new``; ``tests``: those of its area."""

    name: str
    file: str
    old: str
    new: str
    tests: str


Verdict = Literal["killed", "survived", "stale"]

_COLLECTIVES = (
    "cost_models/test_collectives.py cost_models/test_ring_latencies.py cost_models/test_collective_options.py"
)
_BYTES = "cost_models/test_traffic.py cost_models/test_overlap.py"
_PIPELINE = "cost_models/test_pipeline.py cost_models/test_pipeline_exact.py"
_MEMORY = "test_counted_memory.py cost_models/test_memory.py"
_ENGINE = "simulation/test_engine.py"
_REPLAY = "simulation/test_two_buildings.py simulation/test_step_run.py simulation/test_price_agrees.py"
_VERIFICATION = "test_verification.py test_verify_command.py"

# fmt: off
MUTATIONS = (
    Mutation("memory_zero", "cost_models/memory.py",
             '"activations": _activations(profile, job, candidates, classes, in_flight),',
             '"activations": 0.0 * _activations(profile, job, candidates, classes, in_flight),', "test_counted_memory.py"),
    Mutation("activation_bytes_doubled", "cost_models/traffic.py", "ACTIVATION_BYTES: Final = 2.0",
             "ACTIVATION_BYTES: Final = 4.0", _BYTES),
    Mutation("one_call_more_per_layer", "cost_models/traffic.py",
             'pairs: dict[Phase, Floats] = {"forward": forward * m,',
             'pairs: dict[Phase, Floats] = {"forward": (forward + 1) * m,', _BYTES),
    Mutation("inter_building_rate_x8", "cost_models/levels.py",
             "capacity[crossed] = min(capacity[crossed], paths.bytes_per_s(here, there))",
             "capacity[crossed] = min(capacity[crossed], 8 * paths.bytes_per_s(here, there))",
             "cost_models/test_levels.py simulation/test_two_buildings.py"),
    Mutation("kept_activations_doubled", "cost_models/memory.py", "return (kept * held + head) * _tokens(job, candidates)",
             "return (2 * kept * held + head) * _tokens(job, candidates)", _MEMORY),
    Mutation("optimizer_never_sharded", "cost_models/memory.py", '"optimizer": held.sharded(candidates)',
             '"optimizer": held.total', _MEMORY),
    Mutation("one_gathered_layer", "cost_models/memory.py", "return (2 * held * each + full",
             "return (1 * held * each + full", _MEMORY),
    Mutation("in_flight_off_by_one", "cost_models/pipeline/timed_bounds.py", '"1F1B": lambda: p - s,',
             '"1F1B": lambda: p - s - 1,', f"test_counted_memory.py {_PIPELINE}"),
    Mutation("bubble_off_by_one", "cost_models/pipeline/closed_form.py", "plain = (m + p - 1) * (F + B)",
             "plain = (m + p) * (F + B)", _PIPELINE),
    Mutation("messages_travel_one_way", "cost_models/pipeline/closed_form.py", "gpipe = plain + 2 * across +",
             "gpipe = plain + across +", _PIPELINE),
    Mutation("bound_of_a_queue_too_high", "cost_models/pipeline/closed_form.py", "+ (m * v - 1) * busy",
             "+ m * v * busy", _PIPELINE),
    Mutation("ring_sends_everything", "cost_models/collective_laws.py", "(shape.degree - 1) / shape.degree / thinnest,",
             "1 / thinnest,", _COLLECTIVES),
    Mutation("tree_passes_once", "cost_models/collective_laws.py", "np.ones(np.shape(outermost[0])),\n        2 / thinnest,",
             "np.ones(np.shape(outermost[0])),\n        1 / thinnest,", _COLLECTIVES),
    Mutation("one_latency_a_level", "cost_models/collective_laws.py",
             "(counted * steps * links.latency).sum(axis=-1),", "(counted * links.latency).sum(axis=-1),", _COLLECTIVES),
    Mutation("experts_not_split_by_tp", "cost_models/traffic.py", "return self.hidden_bytes * copies / self.candidates.tp",
             "return self.hidden_bytes * copies", _BYTES),
    Mutation("gradients_in_parameter_bytes", "cost_models/traffic.py",
             "reduced: Floats = held * self.job.optimizer.reduce_bytes",
             "reduced: Floats = held * self.job.optimizer.parameter_bytes", _BYTES),
    Mutation("attention_backward_twice", "cost_models/compute.py", "ATTENTION_BACKWARD_RATIO: Final = 2.5",
             "ATTENTION_BACKWARD_RATIO: Final = 2.0", "cost_models/test_compute.py golden/test_golden.py"),
    Mutation("context_not_split", "cost_models/compute.py", "return self.micro_batch * (sequence_length / self.cp)",
             "return self.micro_batch * (sequence_length / 1)", "cost_models/test_compute.py cost_models/test_layer_seconds.py"),
    Mutation("loss_without_survivors", "cost_models/network/transport.py",
             "(1 - loss_fraction) / (1 - loss_fraction + ", "(1 - loss_fraction) / (1 + ", "cost_models/test_network_effects.py"),
    Mutation("window_per_single_trip", "cost_models/network/transport.py", "window_bytes / (2 * one_way_latency_s)",
             "window_bytes / one_way_latency_s", "cost_models/test_network_effects.py"),
    Mutation("half_the_distance", "cost_models/levels.py", "max(latency[crossed], paths.latency_s(here, there))",
             "max(latency[crossed], 0.5 * paths.latency_s(here, there))",
             "cost_models/test_levels.py simulation/test_two_buildings.py"),
    Mutation("full_links_keep_their_rate", "simulation/event_loop.py",
             "limit = min(limit, row.share / row.weight)", "limit = min(limit, row.share)", _ENGINE),
    Mutation("stopped_flows_leave_links", "simulation/event_loop.py",
             "row.share - limit * crossings[place].weight", "row.share - 0.5 * limit * crossings[place].weight", _ENGINE),
    Mutation("half_an_all_to_all", "simulation/patterns.py", "sent = pairs / degree * distinct(degree / per[a][rows])",
             "sent = pairs / degree / 2 * distinct(degree / per[a][rows])", _REPLAY),
    Mutation("ring_forgets_its_start", "simulation/patterns.py", "return float(max(inside, ending, over))",
             "return float(max(inside, ending))", f"cost_models/test_ring_latencies.py {_REPLAY}"),
    Mutation("trunk_undersubscribed", "spec/topology.py", "* trunk.efficiency_fraction / trunk.oversubscription_ratio",
             "* trunk.efficiency_fraction", "cost_models/test_levels.py"),
    Mutation("window_per_trip_in_simulation", "simulation/connections.py",
             "window = settings.window_bytes / (2 * latency_s) if", "window = settings.window_bytes / latency_s if",
             "simulation/test_connections.py"),
    Mutation("what_does_not_fit_passes", "verification/memory.py", "yield from does_not_fit(counted)", "return",
             _VERIFICATION),
    Mutation("bounds_may_exceed", "verification/figures.py", "if bound > report.objective_s * (1 + TOLERANCE):",
             "if bound > report.objective_s * 2:", _VERIFICATION),
    Mutation("one_replica_more_lost", "verification/failures.py", "if len(replicas) > wanted.max_replicas_lost:",
             "if len(replicas) > wanted.max_replicas_lost + 1:", f"solvers/test_failures.py {_VERIFICATION}"),
)
# fmt: on
SEEDED = ("memory_zero", "activation_bytes_doubled", "one_call_more_per_layer", "inter_building_rate_x8")


def times_found(mutation: Mutation) -> int:
    """How often the text of a mutation stands in its file; 0 where the file is gone."""
    path = ROOT / PACKAGE / mutation.file
    return path.read_text(encoding="utf-8").count(mutation.old) if path.exists() else 0


def try_out(mutation: Mutation, everything: bool = False, work: Path | None = None) -> tuple[Verdict, str]:
    """Verdict on one mutation, and the test that killed it.

    Args:
        everything: run all of make test, not the tests of the area only.
        work: a copy of the repository (``copy``), used one mutation at a time; None makes one and removes it.
    """
    if times_found(mutation) != 1:
        return "stale", ""
    if work is None:
        with tempfile.TemporaryDirectory() as folder:
            return try_out(mutation, everything, copy(Path(folder)))
    path = work / PACKAGE / mutation.file
    sound = path.read_text(encoding="utf-8")
    tests = ["tests"] if everything else [str(Path("tests") / one) for one in mutation.tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(work / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    path.write_text(sound.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "killed", f"no end after {TIMEOUT_S} s"
    finally:
        path.write_text(sound, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise SystemExit(
            f"{mutation.name}: pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return ("killed", failed[0] if failed else "?") if done.returncode else ("survived", "")


def copy(folder: Path) -> Path:
    """The repository without what git ignores, in ``folder``."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, folder / name)
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per mutation; 0 where at most a tenth survives and none is stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="some mutations; all without")
    parser.add_argument("--all", action="store_true", help="run everything that make test runs against each")
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.names) - {one.name for one in MUTATIONS})
    if unknown:
        parser.error(f"no mutation {', '.join(unknown)}; there are {', '.join(one.name for one in MUTATIONS)}")
    chosen = [one for one in MUTATIONS if not asked.names or one.name in asked.names]
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory() as folder:
        work = copy(Path(folder))
        for mutation in chosen:
            began = time.monotonic()
            verdict, by = try_out(mutation, asked.all, work)
            verdicts.append(verdict)
            print(f"{verdict:>8}  {mutation.name:<32} {time.monotonic() - began:5.0f} s  {by}", flush=True)
    killed = verdicts.count("killed")
    print(f"{killed} of {len(verdicts)} killed, {verdicts.count('survived')} survived, {verdicts.count('stale')} stale")
    return 0 if killed >= 0.9 * len(verdicts) and "stale" not in verdicts else 1


if __name__ == "__main__":
    raise SystemExit(main())
