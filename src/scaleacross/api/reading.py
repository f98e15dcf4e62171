"""The verb evaluate for settings that somebody runs: Megatron-LM arguments or a torchtitan configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scaleacross.api.evaluation import evaluated
from scaleacross.api.problems import problem_of
from scaleacross.api.stated import noted, stated
from scaleacross.errors import InputError, unreadable
from scaleacross.readers import READERS
from scaleacross.readers.hosts import check_whole, placement_of, read_hosts
from scaleacross.readers.megatron_model import check_model
from scaleacross.readers.settings import Reading
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.improvement import OF_SETTINGS
from scaleacross.spec.job import Job
from scaleacross.spec.plan import Decision, Plan
from scaleacross.targets.common import decoder_of
from scaleacross.workloads.problem import Problem


class Present(NamedTuple):
    """Settings as they run today.

    Attributes:
        plan: the evaluated settings.
        job: the job for which they were read.
        stated: overrides of the job that the settings mean.
        overrides: overrides of the user; they win over ``stated``.
        placed: True where hosts were given, so that the placement is the user's.
    """

    plan: Plan
    job: Job | str | Path
    stated: tuple[str, ...]
    overrides: tuple[str, ...]
    placed: bool

    def problem(self, decision: Decision, changes: Sequence[str] = ()) -> Problem:
        """Resolve the job as the settings have it, with ``changes``.

        Fields that ``decision`` sets are pinned to its values.
        """
        return problem_of(self.job, (*self.stated, *_pins(decision), *self.overrides, *changes))


def evaluate_settings(
    framework: str,
    settings: str | Path,
    job: Job | str | Path,
    *,
    hosts: str | Path | None = None,
    world: int | None = None,
    overrides: Sequence[str] = (),
) -> Plan:
    """Return the plan that a framework's settings amount to, with its step time, for the model and topology of ``job``.

    Where the settings hand over communicator settings, the network is chosen as ``plan`` chooses it. Without them the
    library's defaults hold.

    Args:
        framework: megatron or torchtitan.
        settings: a file of arguments (bash array or command line), or a config module (.py) or TOML file.
        job: names model and topology; batch, sequence, precision and overlap come from the settings.
        hosts: hosts.txt in node-rank order, or slurm_hostfile, which give the placement; None: the best placement is
            chosen.
        world: number of processes, where ``hosts`` is not given.
        overrides: as ``evaluate``; they win over the settings.

    Returns:
        A Plan with status ``evaluated``; times are in seconds, as in ``evaluate``. Its notes list options that were not
        read.

    Raises:
        InputError: a file cannot be read, no plan can express the settings, or the model is not the job's.
        InfeasibleError: the degrees do not fit into the topology.
    """
    return present_settings(framework, settings, job, hosts=hosts, world=world, overrides=overrides).plan


def present_settings(
    framework: str,
    settings: str | Path,
    job: Job | str | Path,
    *,
    hosts: str | Path | None = None,
    world: int | None = None,
    overrides: Sequence[str] = (),
) -> Present:
    """Evaluate settings as ``evaluate_settings`` does, and also return what they state of the job.

    Arguments and errors are the same.
    """
    if framework not in READERS:
        raise InputError(f"settings of '{framework}' cannot be read; there are {', '.join(READERS)}")
    listed = read_hosts(_text(hosts), str(hosts)) if hosts is not None else None
    if listed is None and world is None:
        raise InputError("how many processes? Give --hosts hosts.txt or --world N")
    size = len(listed) if listed else world or 0
    if world is not None and listed and world != size:
        raise InputError(f"{hosts} lists {size:,} processes; --world says {world:,}")
    given = problem_of(job, ())
    profile = given.profile
    if listed:
        check_whole(listed, str(hosts), given.topology)
    num_layers = profile.num_layers - profile.num_prediction_layers  # settings say whether they train these
    reading = READERS[framework](_text(settings), str(settings), size, num_layers)
    stated_there = {"prediction_layers": 0, **reading.job}
    meant = (f"target={framework}", *(f"{key}={value}" for key, value in stated_there.items()))
    decision = reading.decision.model_copy(update={"recompute": profile.acting(reading.decision.recompute)})
    problem = problem_of(job, (*meant, *_pins(decision), *overrides))
    _same_model(problem, reading, str(settings))
    known = problem.job
    notes = (
        check_model(reading.options, decoder_of(known), known.sequence_length, decision.degrees.tp, str(settings))
        if reading.options
        else []
    )
    _shares_stated(problem, reading, str(settings))
    if listed:
        placement = placement_of(listed, str(hosts), problem.topology, decision.degrees, reading.order)
        decision = decision.model_copy(update={"placement": placement})
    tuned = reading.tuned and problem.job.network.settings == "chosen"
    found = evaluated(problem, decision, degraded=not tuned)
    if tuned:
        found = evaluated(problem, with_network(problem, found.decision, 0).decision)
    plan = stated(found, problem)
    for note in (*reading.notes, *notes):
        plan = noted(plan, f"{OF_SETTINGS}{note}")
    return Present(plan, job, meant, tuple(overrides), listed is not None)


def _pins(decision: Decision) -> list[str]:
    """Return overrides of a job that restrict its choices to this decision and pin nothing else."""
    pipeline = decision.pipeline
    pins = {
        "degrees": "{}",
        "num_accelerators": decision.degrees.world_size,
        "recompute": f"[{decision.recompute}]",
        "shard": f"[{decision.shard}]",
        "context_exchange": f"[{decision.context_exchange}]",
        "expert_folding": f"[{decision.degrees.expert_folding}]",
        "activation_offload": f"[{decision.activation_offload}]",
        "optimizer_offload": f"[{decision.optimizer_offload}]",
        "schedules": f"[{pipeline.schedule}]",
        "num_chunks": f"[{pipeline.num_chunks}]",
        "micro_batch_sequences": f"[{pipeline.micro_batch_sequences}]",
    }
    return [f"{key}={value}" for key, value in pins.items()]


def _shares_stated(problem: Problem, reading: Reading, name: str) -> None:
    for path, option in reading.unsaid.items():
        part, _, field = path.partition(".")
        if not getattr(getattr(problem.job, part), field) > 0:
            raise InputError(
                f"{name}: {option} overlaps a share that it does not state, and the job states {path} 0: state it there, or with "
                f"--set {path}=0.8"
            )


def _text(path: str | Path | None) -> str:
    try:
        return Path(str(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {unreadable(error)}") from error


def _same_model(problem: Problem, reading: Reading, name: str) -> None:
    profile = problem.profile
    known = {
        "num_layers": profile.num_layers - profile.num_prediction_layers,
        "hidden_size": profile.embedding.hidden_size,
        "num_experts": profile.num_experts,
        "vocabulary_size": profile.vocabulary_size,
    }
    for key, value in reading.model.items():
        if known[key] != value:
            raise InputError(
                f"{name}: {key} {value} is another model than the job's '{profile.name}' with {known[key]}"
            )
