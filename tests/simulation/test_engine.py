"""The simulation clock and fair link sharing, on cases with known results."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from oracles.clock import Clock
from oracles.messages import Route, add_collective
from scaleacross.errors import InputError
from scaleacross.schedules import collective as c
from scaleacross.simulation.clock import world_of
from scaleacross.simulation.engine import Simulation
from scaleacross.simulation.event_loop import advance
from scaleacross.simulation.tasks import Task, TaskGraph, Timeline


def simulation(*capacities: float) -> Simulation:
    return Simulation(np.array(capacities, dtype=float))


def fair_rates(paths: list[list[tuple[int, float]]], caps: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Rates of flows that start together, bytes/s."""
    kinds = [Task("f", 1.0, path, None, 0.0, cap, (), 0.0) for path, cap in zip(paths, caps.tolist(), strict=True)]
    none, number = np.zeros(0, dtype=np.int64), len(kinds)
    world = world_of(TaskGraph(kinds, np.arange(number), none, np.zeros(number + 1, dtype=np.int64)), capacities)
    advance(world, 0)
    return world.tasks["rate"][:-1]


# --- fairness -------------------------------------------------------------------------------------------------------------


def test_parking_lot() -> None:
    """One flow over three links of rate 1, and one flow on each link. Every flow gets half."""
    paths = [[(0, 1), (1, 1), (2, 1)], [(0, 1)], [(1, 1)], [(2, 1)]]
    rates = fair_rates(paths, np.full(4, np.inf), np.ones(3))
    assert rates == pytest.approx([0.5] * 4)


def test_caps_leave_the_rest_to_others() -> None:
    rates = fair_rates([[(0, 1)]] * 3, np.array([1.0, np.inf, np.inf]), np.array([9.0]))
    assert rates == pytest.approx([1, 4, 4])


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[list[tuple[int, float]]], np.ndarray, np.ndarray]:
    num_links = draw(st.integers(1, 6))
    links = st.lists(st.integers(0, num_links - 1), min_size=1, max_size=num_links, unique=True)
    weights = st.sampled_from([1.0, 2.0, 5.0])
    paths = [[(link, draw(weights)) for link in draw(links)] for _ in range(draw(st.integers(1, 8)))]
    caps = np.array([draw(st.sampled_from([np.inf, 0.5, 2.0, 7.0])) for _ in paths])
    capacities = np.array([draw(st.floats(0.5, 20.0)) for _ in range(num_links)])
    return paths, caps, capacities


def water_filling(paths: list[list[tuple[int, float]]], caps: np.ndarray, capacities: np.ndarray) -> list[Fraction]:
    """Fair rates by water filling in exact fractions, for comparison.

    The least share, of a link or of a flow's own cap, is assigned and removed first.
    """
    left = [Fraction(float(one)) for one in capacities]
    rates: dict[int, Fraction] = {}
    while len(rates) < len(paths):
        open_ = [flow for flow in range(len(paths)) if flow not in rates]
        weights = [sum(Fraction(dict(paths[flow]).get(link, 0)) for flow in open_) for link in range(len(left))]
        shares = [(left[link] / weight, link) for link, weight in enumerate(weights) if weight]
        own = [(Fraction(float(caps[flow])), flow) for flow in open_ if np.isfinite(caps[flow])]
        share, link = min(shares)
        if own and min(own)[0] <= share:
            share, flow = min(own)
            served = [flow]
        else:
            served = [flow for flow in open_ if link in dict(paths[flow])]
        for flow in served:
            rates[flow] = share
            for crossed, weight in paths[flow]:
                left[crossed] -= share * Fraction(weight)
    return [rates[flow] for flow in range(len(paths))]


@each("first", (0,), heavy=(250, 500, 750))
def test_fair_rates_equal_water_filling_on_a_thousand_graphs(first: int) -> None:
    for seed in range(first, first + 250):
        rng = np.random.default_rng(seed)
        num_links, num_flows = rng.integers(1, 12), rng.integers(1, 16)
        paths = [
            [
                (int(link), float(rng.choice([1.0, 2.0, 5.0])))
                for link in rng.permutation(num_links)[: rng.integers(1, num_links + 1)]
            ]
            for _ in range(num_flows)
        ]
        caps, capacities = rng.choice([np.inf, 0.5, 2.0, 7.0], num_flows), rng.uniform(0.5, 20.0, num_links)
        expected = [float(rate) for rate in water_filling(paths, caps, capacities)]
        assert fair_rates(paths, caps, capacities) == pytest.approx(expected), seed


@given(networks())
@settings(max_examples=200, deadline=None)
def test_fair_rates_satisfy_the_definition(
    network: tuple[list[list[tuple[int, float]]], np.ndarray, np.ndarray],
) -> None:
    """No link is overfull.

    Every flow is at its cap or crosses a full link where no flow has more (max-min fairness).
    """
    paths, caps, capacities = network
    rates = fair_rates(paths, caps, capacities)
    load = np.zeros(len(capacities))
    for path, rate in zip(paths, rates, strict=True):
        for link, weight in path:
            load[link] += weight * rate
    assert (load <= capacities * (1 + 1e-9)).all()
    for flow, path in enumerate(paths):
        full = [link for link, _ in path if load[link] >= capacities[link] * (1 - 1e-9)]
        most = {link: max(rates[f] for f, p in enumerate(paths) if link in dict(p)) for link in full}
        bottleneck = any(rates[flow] >= most[link] * (1 - 1e-9) for link in full)
        assert bottleneck or rates[flow] == pytest.approx(caps[flow])


# --- the loop ------------------------------------------------------------------------------------------------------------


def test_one_flow_and_n_equal_flows() -> None:
    one = simulation(10.0)
    one.flow("f", 50, [(0, 1)], latency_s=0.25)
    assert one.run().total_s == pytest.approx(5.25)
    many = simulation(10.0)
    for _ in range(7):
        many.flow("f", 50, [(0, 1)])
    assert many.run().end_s == pytest.approx([35.0] * 7)
    folded = simulation(10.0)
    folded.flow("seven like this", 50, [(0, 7)])
    assert folded.run().total_s == pytest.approx(35.0)


def test_a_flow_that_ends_leaves_its_share() -> None:
    """Flows of 10 and 30 bytes share a link of rate 2. Both have rate 1 until 10 s, then 20 bytes move at rate 2."""
    shared = simulation(2.0)
    shared.flow("short", 10, [(0, 1)])
    shared.flow("long", 30, [(0, 1)])
    assert shared.run().end_s == pytest.approx([10, 20])


def test_parking_lot_through_the_clock() -> None:
    """One flow crosses three links of rate 1, and one flow is on each link.

    All have rate 1/2 until 20 s. Each remaining flow then has its link alone.
    """
    lot = simulation(1.0, 1.0, 1.0)
    lot.flow("long", 10, [(0, 1), (1, 1), (2, 1)])
    for link, size in enumerate((10, 20, 30)):
        lot.flow("short", size, [(link, 1)])
    assert lot.run().end_s == pytest.approx([20, 20, 30, 40])


def test_lanes_and_dependencies() -> None:
    run = simulation(1.0)
    a = run.compute("a", 2, lane="x")
    b = run.compute("b", 3, lane="x")
    message = run.flow("m", 4, [(0, 1)], latency_s=1, after=[a])
    c_ = run.compute("c", 1, lane="y", after=[message])
    d = run.compute("d", 1, lane="y")
    nothing = run.compute("nothing", 0, after=[c_, d])
    timeline = run.run()
    assert timeline.start_s[[a, b, message, c_, d, nothing]] == pytest.approx([0, 2, 2, 7, 8, 9])
    assert timeline.total_s == pytest.approx(9)


def test_computation_beside_a_transfer_that_holds_the_device() -> None:
    """A transfer holds a quarter of a device for 2 s.

    The computation finishes 1.5 s of work in this time and 2.5 s at full speed.
    """
    run = simulation(5.0)
    work = run.compute("work", 4, device=0)
    other = run.compute("elsewhere", 4, device=1)
    run.flow("gather", 10, [(0, 1)], holds=[0], held_fraction=0.25)
    timeline = run.run()
    assert timeline.end_s[[work, other]] == pytest.approx([4.5, 4.0])


@pytest.mark.parametrize(
    ("capacity", "size", "after", "message"),
    [
        (0.0, 1.0, [], "never ends"),
        (1.0, -1.0, [], "negative"),
        (1.0, float("nan"), [], "negative"),
        (1.0, 1.0, [3], "not added"),
    ],
)
def test_bad_input(capacity: float, size: float, after: list[int], message: str) -> None:
    run = simulation(capacity)
    with pytest.raises(InputError, match=message):
        run.flow("f", size, [(0, 1)], after=after)
        run.run()


# --- collectives ----------------------------------------------------------------------------------------------------------


def replay(schedule: c.CollectiveSchedule, links: Simulation, route: object, size: float) -> Timeline:
    add_collective(links, schedule, route, lambda _: size / schedule.num_blocks)  # type: ignore[arg-type]
    return links.run()


def homogeneous(num_ranks: int, latency_s: float) -> tuple[Simulation, object]:
    """A network in which every rank has one link out and one link in, of 1 byte/s."""
    return (
        simulation(*[1.0] * (2 * num_ranks)),
        lambda a, b: Route([(a, 1.0), (num_ranks + b, 1.0)], latency_s),
    )


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("latency_s", [0.0, 0.125])
def test_ring_takes_its_closed_form(n: int, latency_s: float) -> None:
    links, route = homogeneous(n, latency_s)
    total = replay(c.flat(c.Operation.ALL_REDUCE, "ring", n), links, route, 24.0).total_s
    assert total == pytest.approx(2 * (n - 1) * (24.0 / n + latency_s))


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 13, 16])
def test_halving_and_doubling_takes_its_closed_form(n: int) -> None:
    links, route = homogeneous(n, 0.5)
    total = replay(c.flat(c.Operation.ALL_REDUCE, "halving_doubling", n), links, route, 32.0).total_s
    assert total == pytest.approx(2 * ((n - 1) / n * 32.0 + np.ceil(np.log2(n)) * 0.5))


@pytest.mark.parametrize("buildings", [2, 4])
def test_hierarchical_takes_its_closed_form(buildings: int) -> None:
    """The hierarchical algorithm takes its closed form, phase after phase.

    Each building has g accelerators of 1 byte/s and a port of 0.25 byte/s in and out.
    """
    g, size = 4, 48.0
    n = buildings * g
    links = simulation(*[1.0] * (2 * n), *[0.25] * (2 * buildings))

    def route(a: int, b: int) -> Route:
        ends = [(a, 1.0), (n + b, 1.0)]
        far = [(2 * n + a // g, 1.0), (2 * n + buildings + b // g, 1.0)] if a // g != b // g else []
        return Route(ends + far, 0.5 if far else 0.0)

    layout = tuple(tuple(range(g * b, g * b + g)) for b in range(buildings))
    schedule = c.layered(c.Operation.ALL_REDUCE, layout, ["ring", "ring"])
    inside = 2 * (g - 1) / g * size
    across = 2 * (buildings - 1) * (size / buildings / 0.25 + 0.5)
    assert replay(schedule, links, route, size).total_s == pytest.approx(inside + across)
    piped = c.layered(c.Operation.ALL_REDUCE, layout, ["ring", "ring"], num_channels=8)
    links = simulation(*links.capacities_bytes_per_s)
    assert (
        2 * (buildings - 1) / buildings * size / 0.25
        < replay(piped, links, route, size).total_s
        < 0.9 * (inside + across)
    )


# --- the compiled loop and the plain one -----------------------------------------------------------------------------------


def random_step(seed: int) -> Simulation:
    """A random step of computations and flows.

    They share links, hold devices, may have latencies or no work, and wait for arrivals or ends.
    """
    rng = np.random.default_rng(seed)
    num_links, sizes = int(rng.integers(1, 6)), np.array([0.0, 1.0, 2.0, 3.5])
    drawn = Simulation(rng.uniform(0.5, 4.0, num_links))
    for number in range(int(rng.integers(2, 60))):
        before = rng.permutation(number)[: rng.integers(0, 4)].tolist()
        if rng.random() < 0.4:
            drawn.compute("c", float(rng.choice(sizes)), int(rng.integers(3)), before, lane=int(rng.integers(9)))
            continue
        path = [
            (int(link), float(rng.choice([0.5, 1, 3]))) for link in rng.permutation(num_links)[: rng.integers(0, 4)]
        ]
        held = {"holds": tuple(range(int(rng.integers(4)))), "held_fraction": 0.2} if rng.random() < 0.3 else {}
        cap = float(rng.choice([0.3, 1.0, np.inf])) if path else 1.0
        latency = float(rng.choice([0.0, 0.5]))
        drawn.flow("f", float(rng.choice(sizes)), path, latency, (), before, cap_bytes_per_s=cap, **held)
    return drawn


@each("first", (0,), heavy=(75, 150, 225))
def test_the_compiled_loop_equals_the_plain_one(first: int) -> None:
    for seed in range(first, first + 75):
        drawn = random_step(seed)
        plain = Clock(drawn.tasks, drawn._after, drawn.capacities_bytes_per_s, None).to_the_end()
        found = drawn.run()
        for name in ("start_s", "end_s", "arrival_s"):
            assert getattr(found, name) == pytest.approx(getattr(plain, name), rel=1e-9, abs=1e-12), seed


def test_a_link_takes_any_number_of_flows_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, told = simulation(1.0), []
    for number in range(200):
        crowd.flow("f", 1.0 + number, [(0, 1)])
    monkeypatch.setattr("scaleacross.simulation.clock.EVENTS", 50)
    assert crowd.run(lambda done, total: told.append((done, total))).total_s == pytest.approx(200 * 201 / 2)
    assert told == [(50, 200), (100, 200), (150, 200)]
