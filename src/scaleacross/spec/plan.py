"""The plan: its decision, predicted step time and memory, and proof. All output of the tool comes from it."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from scaleacross.spec.base import Name, Spec
from scaleacross.spec.goodput import Goodput
from scaleacross.spec.job import Job, ObjectiveName
from scaleacross.spec.network import LinkLevel
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.spec.network_report import NetworkReport
from scaleacross.spec.offloading import OffloadShare
from scaleacross.spec.parallelism import Axis, ContextExchange, Degrees, PipelineChoice, ShardLevel
from scaleacross.spec.placement import Placement
from scaleacross.spec.recomputation import Recompute
from scaleacross.spec.step_errors import StepInterval
from scaleacross.spec.step_work import Phase, PipelineWork

# Components of a step, in the order in which they are shown. They add up to ``step_s``.
COMPONENTS = ("compute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer")


class BatchShare(Spec):
    """Micro-batches of the data-parallel replicas that lie in exactly these buildings."""

    buildings: tuple[Name, ...] = Field(
        min_length=1, description="buildings of a replica, in the order of placement.fill"
    )
    num_replicas: PositiveInt = Field(description="replicas that touch these buildings and no others")
    num_micro_batches: PositiveInt = Field(description="micro-batches of each of them in a step")


class Decision(Spec):
    """Everything that the solver chooses, or that a user states for ``evaluate``."""

    degrees: Degrees
    pipeline: PipelineChoice
    recompute: Recompute
    shard: ShardLevel
    context_exchange: ContextExchange = Field(
        default="ring", description="how attention sees the whole sequence; without meaning where cp is 1"
    )
    activation_offload: OffloadShare = Field(
        default=0.0, description="share of every chunk's layers whose activations wait in host memory"
    )
    optimizer_offload: OffloadShare = Field(
        default=0.0, description="share of the optimizer states that the host holds and updates"
    )
    placement: Placement | None = Field(default=None, description="None: to be chosen")
    layers_per_stage: tuple[tuple[NonNegativeInt, ...], ...] | None = Field(
        default=None, description="[pipeline rank][chunk] -> layers, 0 at the ends only; None: as equal as possible"
    )
    stage_recompute: tuple[Recompute, ...] | None = Field(default=None, description="policy by rank, if per_stage")
    batch_shares: tuple[BatchShare, ...] | None = Field(
        default=None, description="micro-batches by replica class; None: every replica has equally many"
    )
    network: tuple[CommunicatorChoice, ...] | None = Field(
        default=None,
        description="how every communicator runs its collectives; None, and whatever it leaves out: the library's defaults",
    )

    @field_validator("network")
    @classmethod
    def _one_choice_each(cls, value: tuple[CommunicatorChoice, ...] | None) -> tuple[CommunicatorChoice, ...] | None:
        keys = [one.key for one in value or ()]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"network: {' '.join(key)} is chosen {keys.count(key)} times; keep one")
        return value

    @property
    def placed(self) -> Placement:
        """The placement. Raises ValueError where it is still to be chosen."""
        if self.placement is None:
            raise ValueError("the decision has no placement")
        return self.placement

    def mean_micro_batches(self, global_batch_sequences: int) -> int:
        """Return the micro-batches of every replica; where ``batch_shares`` differ, their mean, rounded up."""
        return -(-global_batch_sequences // (self.degrees.dp * self.pipeline.micro_batch_sequences))


class CostBreakdown(Spec):
    """One optimizer step, seconds; the parts add up to ``step_s``.

    ``exposed_s`` is communication that overlaps with no computation.
    """

    step_s: float
    compute_s: float = Field(description="computation of the busiest stage, all micro-batches")
    bubble_s: float = Field(description="idle time of that stage for filling and draining the pipeline")
    exposed_s: dict[Axis | Literal["dp"], float] = Field(
        description="exposed communication per axis: tp, cp, ep, pp, dp"
    )
    optimizer_s: float = Field(description="optimizer update and host work per step, exposed")
    tokens_per_s: float
    model_flop_per_s: float = Field(
        description="model FLOP (causal attention counted half, no recompute) per accelerator and second"
    )
    mfu: float = Field(description="model_flop_per_s over the accelerator's peak")

    def component(self, name: str) -> float:
        """Seconds of one of COMPONENTS."""
        own = {"compute": self.compute_s, "bubble": self.bubble_s, "optimizer": self.optimizer_s}
        return own[name] if name in own else {str(axis): time for axis, time in self.exposed_s.items()}.get(name, 0.0)


class StageMemory(Spec):
    """Peak bytes per accelerator of one pipeline rank."""

    stage: int
    num_layers: int
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    buffers_bytes: float
    reserved_bytes: float
    capacity_bytes: float
    headroom_bytes: float = Field(default=0.0, description="of the capacity, what the job keeps free")
    host_bytes: float = Field(default=0.0, description="offloaded to host memory")
    host_capacity_bytes: float = Field(
        default=0.0, description="host memory that the accelerator may fill; 0 where nothing is offloaded"
    )

    @property
    def fits(self) -> bool:
        """Whether device memory holds all parts and the headroom, and host memory holds what is offloaded."""
        return (
            self.total_bytes <= self.capacity_bytes - self.headroom_bytes
            and self.host_bytes <= self.host_capacity_bytes
        )

    @property
    def total_bytes(self) -> float:
        """Sum of all parts, bytes."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.buffers_bytes
            + self.reserved_bytes
        )


class PredictedCollective(Spec):
    """One kind of collective in the plan, with its predicted time if nothing else uses the network."""

    name: str = Field(description="e.g. 'tp all_gather', 'dp_replicate all_reduce'")
    axis: Axis
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
    group_size: PositiveInt
    bytes_per_rank: float = Field(
        ge=0, description="full tensor for gathers, scatters and reductions; bytes sent for all_to_all and send"
    )
    per_step: float = Field(ge=0, description="how often one rank issues it in a step")
    phases: dict[Phase, float] = Field(
        default_factory=dict, description="per_step by the part of the step in which it is issued"
    )
    level: LinkLevel = Field(description="outermost level crossed")
    algorithm: str = Field(description="ring | tree | hierarchical | pairwise | point_to_point | measured")
    time_s: float = Field(ge=0, description="predicted time of one")


class LevelTraffic(Spec):
    """Bytes that leave the busiest unit below ``level`` per step and direction, and the rate at which it could send."""

    level: LinkLevel
    bytes_per_step: dict[Axis, float]
    capacity_bytes_per_s: float
    utilisation: float = Field(description="bytes / (capacity · step time)")


class DegradedState(Spec):
    """The plan after a failure of one unit or network plane.

    A fault unit is one ``dp_replicate`` group: unless all of its ranks work, its states are incomplete.
    """

    what: str = Field(
        description="what is lost: the unit of its class that costs most fault units, or one network plane"
    )
    units_lost: int = Field(default=0, ge=0, description="fault units with a member in it")
    replicas_lost: int = Field(ge=0, description="data-parallel replicas that stop: all of those fault units")
    step_s: float | None = Field(
        description="keep the batch: step time when the units that are left take over; None: no unit is left"
    )
    tokens_fraction: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="shrink the batch: share of its tokens at the old step time; 0: no unit is left",
    )
    fits: bool = Field(description="whether the units that are left have memory for the whole batch")
    only_copies: int = Field(
        default=0, ge=0, description="shards of the state whose every copy is in it: only a checkpoint brings them back"
    )


class Alternative(Spec):
    """A plan that was not chosen, with the reason."""

    label: str
    decision: Decision
    step_s: float | None = Field(description="None when it is infeasible")
    reason: str = Field(description="component by component against the winner, or what is short")


OF_FINALISTS: Final = "of the finalists: "
"""Prefix of a note about finalists that were asked for and not simulated."""


class Finalist(Spec):
    """One of the decisions that were simulated to choose the plan."""

    decision: Decision
    price_s: float
    replayed_s: float | None = Field(description="step time of its simulation; None: the simulator refused it")
    reason: str = Field(default="", description="of the refusal")


class Bound(Spec):
    """A lower bound on the step time of every plan of the stated space.

    ``compute`` and ``critical_path`` also hold for simulated steps. The others hold for estimates, which the search
    compares. ``any_layers`` also holds outside that space, for every other number of layers per rank.
    """

    name: Literal["search", "any_layers", "compute", "cut", "pipeline", "memory_latency", "critical_path"]
    step_s: float
    why: str


class ObjectiveValue(Spec):
    """An objective other than step time: what a step spends (joules or currency units), and tokens per unit spent."""

    name: ObjectiveName
    value: float = Field(description="tokens/s per megawatt, or tokens/s per currency unit and second")
    bound: float = Field(description="no plan of the space has more")
    unit: str = Field(description="unit of the spending: J or the topology's currency")
    spent_per_step: float = Field(description="what is minimised")
    spent_bound_per_step: float = Field(description="lower bound valid for the whole space")
    parts: dict[str, float] = Field(description="parts of spent_per_step")


class Headroom(Spec):
    """Candidates that are excluded because the job keeps a share of memory free."""

    fraction: float = Field(description="of every accelerator's memory, as the job states it")
    num_candidates: int = Field(
        description="candidates that fit without it and with it do not, of those whose bound was below the best plan when seen"
    )
    bound_s: float | None = Field(
        description="least lower bound on the step time of any of them; None: there is none, or the objective is no time"
    )


Within = Literal["--space quick", "equal stages", "equal chunks"]


class SolveReport(Spec):
    """How the plan was found, and which bounds are proved."""

    status: Literal["optimal", "gap_tolerance", "time_limit", "evaluated"] = Field(
        description="never flattened; infeasible raises instead"
    )
    objective_s: float = Field(description="step time; of a search the estimate, by which it compares")
    bound_s: float = Field(
        description="lower bound on the step time of every plan of the space; of a search on its estimate, of evaluated on any"
    )
    within: tuple[Within, ...] = Field(
        default=(),
        description="what alone status and bound are about, where the search has tried no more; notes say why",
    )
    gap: float = Field(description="(objective - bound) / objective; of spent_per_step where objective says so")
    gap_of: ObjectiveName = Field(
        default="step_time",
        description="the objective that gap is about; objective_s and bound_s are step times whatever it is",
    )
    objective: ObjectiveValue | None = Field(default=None, description="None: the step time is the objective")
    limits: dict[ObjectiveName, float] = Field(
        default_factory=dict,
        description="other objectives that the space was limited by: seconds at most, tokens per spending at least",
    )
    bounds: tuple[Bound, ...] = ()
    num_candidates: int = Field(description="combinations of degrees, schedule, recompute and shard level enumerated")
    num_infeasible: dict[str, int] = Field(default_factory=dict, description="candidates refused, by reason")
    headroom: Headroom | None = Field(
        default=None, description="None: the job keeps no memory free, or nothing was searched"
    )
    num_pruned: int = Field(description="excluded by their lower bound")
    num_placed: int = Field(description="placed exactly by the solver")
    seconds: float
    seed: int
    versions: dict[str, str] = Field(description="solver and package versions")
    alternatives: tuple[Alternative, ...] = ()
    finalists: tuple[Finalist, ...] = Field(
        default=(), description="simulated, fastest first: the plan is the first; empty: the estimate alone chose it"
    )
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _gap_names_its_objective(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "gap_of" in data:
            return data
        value = data.get("objective")
        name = value.get("name", "step_time") if isinstance(value, dict) else getattr(value, "name", "step_time")
        return {**data, "gap_of": name}

    @model_validator(mode="after")
    def _gap_is_of_the_objective(self) -> SolveReport:
        name = "step_time" if self.objective is None else self.objective.name
        if self.gap_of != name:
            raise ValueError(f"gap_of: the gap is of {name}, not of {self.gap_of}")
        return self


class TargetFit(Spec):
    """Whether one target program can express the plan."""

    target: Name = Field(description="scaleacross | megatron | torchtitan")
    refused: tuple[str, ...] = Field(
        default=(), description="what it cannot express, or the memory that it lacks; empty: it runs the plan"
    )


class Plan(Spec):
    """A verified, self-contained plan: ``job`` holds workload and topology in full."""

    schema_version: Literal[1] = 1
    job: Job
    decision: Decision
    layers_per_stage: tuple[tuple[int, ...], ...] = Field(description="[stage][chunk] -> number of layers")
    num_micro_batches: int = Field(description="of the replicas with most; equal unless decision.batch_shares says so")
    cost: CostBreakdown = Field(description="of the simulated step; of the estimate where estimate is None")
    estimate: CostBreakdown | None = Field(
        default=None,
        description="by the formulas that a search compares with; None: cost is that, and no simulation confirms it",
    )
    simulated_s: float | None = Field(
        default=None, description="step time of the plan's simulation; None: it was not simulated, or refused"
    )
    interval: StepInterval | None = Field(
        default=None, description="where the measured step time is expected; None: a plan of an older version"
    )
    memory: tuple[StageMemory, ...]
    traffic: tuple[LevelTraffic, ...]
    collectives: tuple[PredictedCollective, ...]
    work: dict[Name, PipelineWork] | None = Field(
        default=None, description="computation by accelerator type, for a simulation; None: a plan of an older version"
    )
    degraded: tuple[DegradedState, ...] = Field(default=(), description="the plan with something lost")
    goodput: Goodput | None = Field(
        default=None,
        description="useful tokens under failures; None: neither the job nor its topology says anything of them",
    )
    network: NetworkReport | None = Field(
        default=None, description="how decision.network was chosen; None: it was not, or the library's defaults hold"
    )
    targets: tuple[TargetFit, ...] = Field(
        default=(), description="which targets express the plan; empty does not verify"
    )
    report: SolveReport

    @property
    def estimated(self) -> CostBreakdown:
        """The estimated step, to which the search's bounds and alternatives refer."""
        return self.estimate or self.cost

    @property
    def degrees(self) -> Degrees:
        """The parallel degrees."""
        return self.decision.degrees

    @property
    def placement(self) -> Placement:
        """Placement of the ranks on devices."""
        if self.decision.placement is None:
            raise ValueError("a plan always carries a placement")
        return self.decision.placement
