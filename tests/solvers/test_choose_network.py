"""The chosen network is as good as brute force, on random problems with shared budgets and windows.

Whole plans are compared by their step times.
"""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

import scaleacross as sa
from cases import each
from instances import plain_job, plain_topology, plain_trunk
from scaleacross.cost_models.levels import build_levels
from scaleacross.cost_models.network.resources import Held
from scaleacross.cost_models.network.trunks import budgets_bytes, loads_bytes
from scaleacross.cost_models.overlap import NO_CHUNKS, WINDOW_NAMES, ChunkWindows, Window
from scaleacross.cost_models.plan_cost import placed_shapes, plan_cost
from scaleacross.errors import InfeasibleError
from scaleacross.solvers.choose_network import NetworkProblem, build_model, choose, held_by, trunks_within, within
from scaleacross.solvers.network_combinations import Combination, Times, _unbeaten
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.solvers.network_options import FlowOption
from scaleacross.spec.network_choice import CommunicatorChoice
from scaleacross.verification.network import v9_trunks
from scaleacross.workloads.problem import problem_of

NUM_TRUNKS = 3
COMMUNICATORS = ("tp", "cp", "dp_shard", "dp_replicate", "pp")


def random_problem(seed: int) -> NetworkProblem:
    """A random problem of up to five blocks with up to six combinations each.

    Budgets are often tight, and blocks share windows and inter-building links.
    """
    rng = random.Random(seed)
    pieces = rng.choice([1.0, 4.0, 32.0])
    windows = tuple(_window(rng, pieces) for _ in WINDOW_NAMES)
    blocks = tuple(_block(rng, index) for index in range(rng.randint(2, 5)))
    some = held_by([rng.choice(block) for block in blocks])
    budgets = Held(*(int(amount * rng.uniform(0.7, 1.8)) for amount in some))
    trunks = [sum(rng.choice(block).trunk_load[at] for block in blocks) for at in range(NUM_TRUNKS)]
    allowed = tuple(int(load * rng.uniform(0.8, 1.5)) for load in trunks)
    slowed = tuple(one._replace(slowed_s=np.array([rng.choice([0.0, 2.0])])) for one in windows)
    return NetworkProblem(blocks, slowed, pieces, budgets, allowed)


def _window(rng: random.Random, pieces: float) -> Window:
    """A window in which ``pieces`` buckets of communication overlap with up to four seconds of computation."""
    first, taken = 1 / pieces, (1 - 1 / pieces) * rng.choice([0.0, 0.1])
    figures = (rng.uniform(0, 4), first, taken, 1.0, 0.0)
    chunks = np.array([[rng.uniform(0, 1), first, rng.uniform(0, 3)] for _ in range(rng.choice([0, 0, 2]))])
    pieces_of = ChunkWindows(*chunks.reshape(-1, 3, 1).swapaxes(0, 1))
    return Window(*(np.array([one]) for one in figures), np.zeros(1, dtype=bool), pieces_of)


def _block(rng: random.Random, index: int) -> tuple[Combination, ...]:
    """A random block: one or two exposed flows, or one flow in some windows. A communicator may have several blocks."""
    waited, out = rng.random() < 0.4, []
    names = [rng.choice(COMMUNICATORS) for _ in range(rng.randint(1, 2) if waited else 1)]
    inside = [rng.random() < 0.6 for _ in WINDOW_NAMES]
    for _ in range(rng.randint(1, 6)):
        options = tuple(_option(rng, name, index) for name in names)
        seconds = sum(option.time_s for option in options)
        calls, busy, free = (
            tuple(each if here and not waited else 0.0 for here in inside)
            for each in (
                seconds,
                sum(option.busy_s for option in options),
                sum(option.time_s - option.held_s for option in options),
            )
        )
        loads = tuple(rng.choice([0, rng.randint(1, 2**22)]) for _ in range(NUM_TRUNKS))
        out.append(Combination(options, Times(seconds if waited else 0.0, calls, busy, free), loads))
    return tuple(sorted(out, key=lambda one: sum(one.every_s[: 1 + len(WINDOW_NAMES)])))


def _option(rng: random.Random, name: str, index: int) -> FlowOption:
    choice = CommunicatorChoice.model_validate(
        {"communicator": name, "op": "all_gather", "payload": f"flow {index}", "algorithm": "ring"}
        | {"chunk_bytes": 1.0, "num_channels": 1}
    )
    held, seconds = Held(rng.randint(0, 8), rng.randint(0, 500), rng.randint(0, 2**17) * 2**16), rng.uniform(0.1, 3)
    return FlowOption(choice, seconds, seconds * rng.uniform(0.2, 1.0), held, (), rng.choice([1.0, 1.0, 1 / 16, 0.0]))


def brute_force(problem: NetworkProblem) -> float:
    """Least objective of all choices within the budgets; inf if there is none."""
    return min(
        (
            problem.exposed_s(chosen)
            for chosen in product(*problem.blocks)
            if within(held_by(chosen), problem.budgets) and trunks_within(chosen, problem.trunk_load)
        ),
        default=float("inf"),
    )


@each("seed", range(40), range(200), size=40)
def test_choice_is_the_optimum_of_brute_force(seed: int) -> None:
    problem = random_problem(seed)
    best = brute_force(problem)
    if best == float("inf"):
        with pytest.raises(InfeasibleError, match="network"):
            choose(problem)
        return
    found = choose(problem)
    assert found.status == "optimal"
    assert within(held_by(found.chosen), problem.budgets)
    assert trunks_within(found.chosen, problem.trunk_load)
    assert found.exposed_s == pytest.approx(best, rel=1e-5)
    assert found.bound_s <= found.exposed_s


def test_of_equal_choices_the_fastest_is_taken() -> None:
    """Among equal choices the solver takes the fastest.

    All choices are fully overlapped, but the solver must run to see it. For the second communicator the fastest choice
    keeps the network busy for longer.
    """

    def block(name: str, *times: tuple[float, float]) -> tuple[Combination, ...]:
        choice = CommunicatorChoice.model_validate(
            {"communicator": name, "op": "all_gather", "payload": name, "algorithm": "ring", "chunk_bytes": 1.0}
            | {"num_channels": 1}
        )
        return tuple(
            Combination(
                (FlowOption(choice, seconds, busy, Held(0, 0, 0)),),
                Times(0.0, (0.0, seconds, 0.0, 0.0), (0.0, busy, 0.0, 0.0), (0.0,) * 4),
            )
            for seconds, busy in times
        )

    blocks = block("cp", (1.0, 0.9), (1.1, 1.0), (1.2, 1.1)), block("dp_replicate", (2.0, 1.9), (2.1, 1.5))
    nothing = np.zeros(1)
    window = Window(np.array([9.0]), nothing, nothing, np.ones(1), nothing, nothing > 0, NO_CHUNKS)
    found = choose(NetworkProblem(blocks, (window,) * 4, 4.0, Held(9, 9, 9)))
    assert [block.index(one) for block, one in zip(blocks, found.chosen, strict=True)] == [0, 0]


def test_the_random_problems_are_of_every_kind() -> None:
    """Some random problems need no solver, most do, and some have no choice."""
    kinds, contended = {"free": 0, "bound": 0, "none": 0}, 0
    for seed in range(200):
        problem = random_problem(seed)
        fastest = [block[0] for block in problem.blocks]
        fits = within(held_by(fastest), problem.budgets)
        contended += fits and not trunks_within(fastest, problem.trunk_load)
        kinds["free" if fits else "none" if brute_force(problem) == float("inf") else "bound"] += 1
    assert min(kinds.values()) >= 20, kinds
    assert contended >= 20  # the inter-building link alone decides


def test_rows_refuse_what_they_should() -> None:
    """Every constraint holds for a legal choice, and each names the violation of an illegal choice."""
    problem = random_problem(3)
    model, variables = build_model(problem)
    names = {"C1 one each", "C2 held", "C3 budget", "C4 trunks", "C5 granule", "C6 window"}
    assert {row.name for row in model.rows} == names
    for own in variables:
        row = next(row for row in model.rows if row.name == "C1 one each" and set(row.terms) == set(own))
        assert (row.sense, row.right) == ("==", 1.0)


def tight_job(**network: object) -> sa.Job:
    """Two buildings 5 ms apart with data parallelism across them."""
    topology = plain_topology(2, 2)
    topology["trunks"][0] = plain_trunk("b0", "b1", 100.0, 5000.0)
    for building in topology["regions"][0]["buildings"]:
        for level in ("rack", "zone", "building"):
            building["links"][level]["technology"]["load_balancing"] = "ecmp"
    degrees = {"tp": 1, "cp": 1, "pp": 1, "dp_shard": 8, "dp_replicate": 2}
    return plain_job(topology=topology, degrees=degrees, shard=["optimizer"], network=network)


@pytest.mark.slow
def test_budgets_bind_and_the_best_that_is_left_is_taken() -> None:
    free = sa.plan(tight_job(), alternatives=False)
    assert free.network is not None
    half = free.network.held_buffer_bytes * 0.6
    tight = sa.plan(tight_job(max_buffer_bytes=half), alternatives=False)
    assert tight.network is not None
    assert tight.network.held_buffer_bytes <= half < free.network.held_buffer_bytes
    assert free.estimated.step_s <= tight.estimated.step_s <= free.network.library_step_s * (1 + 1e-9)
    problem = problem_of(tight.job)
    best = float("inf")
    found = with_network(problem, tight.decision)
    keys = [choice.key for choice in found.decision.network or ()]
    for chosen in product(*(found.options[key] for key in keys)):
        if within(
            held_by([Combination((option,), Times(0.0, (), (), ())) for option in chosen]), Held(64, 16384, int(half))
        ):
            decision = tight.decision.model_copy(update={"network": tuple(option.choice for option in chosen)})
            best = min(best, plan_cost(problem.job, problem.profile, problem.topology, decision).cost.step_s)
    assert tight.estimated.step_s == pytest.approx(best, rel=1e-6)


def test_a_budget_that_nothing_keeps_to_is_named() -> None:
    with pytest.raises(InfeasibleError, match=r"network\.max_queue_pairs is 1, the least that any choice holds is \d+"):
        sa.plan(tight_job(max_queue_pairs=1))


def shared_trunk_job(**network: object) -> sa.Job:
    """A job whose pipeline and replicas both cross two buildings, over a narrow link."""
    topology = plain_topology(2, 2)
    topology["trunks"][0] = plain_trunk("b0", "b1", 2.0, 20.0)
    degrees = {"tp": 1, "cp": 1, "pp": 2, "dp_shard": 1, "dp_replicate": 8}
    return plain_job(topology=topology, degrees=degrees, shard=["none"], network=network, workload=wide())


def wide() -> dict[str, object]:
    """A model with more parameters per token than the plain one."""
    return plain_job().model_dump()["workload"] | {
        "hidden_size": 1024,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 64,
    }


def test_communicators_of_a_window_share_the_trunk() -> None:
    """A budget for the link is checked on the sum of all communicators.

    A budget above the free choice's load changes nothing. A smaller budget is refused by name, and V9 recounts the
    load.
    """
    free = sa.plan(shared_trunk_job(), alternatives=False)
    problem = problem_of(free.job)
    found = with_network(problem, free.decision)
    shapes = placed_shapes(problem.topology, free.decision)
    assert free.placement.spans["dp_replicate"] == "campus" or free.placement.spans["pp"] == "campus"
    load = loads_bytes(free.decision, found.cost, shapes)[0, 0]
    levels = build_levels(problem.topology, free.placement.fill)
    whole = budgets_bytes(1.0, found.cost.volumes, levels)[0, 0]
    share = load / whole
    assert share > 0
    if share < 0.95:
        enough = with_network(problem_of(shared_trunk_job(max_trunk_fraction=share * 1.05)), free.decision)
        assert enough.cost.cost.step_s == pytest.approx(found.cost.cost.step_s)
    with pytest.raises(InfeasibleError, match=r"network\.max_trunk_fraction lets trunks carry"):
        with_network(problem_of(shared_trunk_job(max_trunk_fraction=min(1.0, share / 50))), free.decision)
    strict = shared_trunk_job(max_trunk_fraction=min(1.0, share / 50))
    wrong = list(v9_trunks(strict, found.decision, found.cost, shapes, levels))
    assert (
        wrong and wrong[0].startswith("V9: gradient_reduce: ") and "over the inter-building links of campus" in wrong[0]
    )


@pytest.mark.parametrize("highest", [3, 50])
def test_what_is_unbeaten_has_less_of_something_than_all_before_it(highest: int) -> None:
    draw = np.random.default_rng(highest)
    for _ in range(50):
        amounts = draw.integers(0, highest, draw.integers(1, (60, 6))).astype(float)
        kept: list[int] = []
        for row, own in enumerate(amounts.tolist()):
            if not any(all(a <= b for a, b in zip(amounts[other], own, strict=True)) for other in kept):
                kept.append(row)
        assert _unbeaten(amounts) == kept
