"""Options of one collective: the planner's estimate is the best of the plain ones, and the simulator agrees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles.messages import Route, add_collective
from scaleacross.cost_models.collective_laws import fewest_steps
from scaleacross.cost_models.collectives import RING, TREE, Group
from scaleacross.cost_models.groups import GroupShape
from scaleacross.cost_models.levels import CAMPUS, NUM_LEVELS, RACK, SCALE_UP, ZONE
from scaleacross.cost_models.links import Links
from scaleacross.cost_models.network.options import options
from scaleacross.cost_models.network.resources import peers_by_level
from scaleacross.cost_models.network.transport import connected, library_settings
from scaleacross.schedules import collective as c
from scaleacross.simulation.engine import Simulation
from scaleacross.spec.network import CURVE_OPS, CurveOp
from scaleacross.spec.network_choice import LEAST_PIECE_BYTES, CommunicatorChoice, num_pieces

LAUNCH_S = 1e-5


def even(fanouts: dict[int, int], crossing: float = 1.0) -> GroupShape:
    """A group with equally many children in every unit, in order of global ranks."""
    fanout, members, pairs = np.ones(NUM_LEVELS), np.ones(NUM_LEVELS), np.zeros(NUM_LEVELS)
    below = 1
    degree = int(np.prod(list(fanouts.values())))
    for level, count in sorted(fanouts.items()):
        fanout[level], members[level] = count, below
        pairs[level] = degree // below - degree // (below * count)
        below *= count
    crosses = np.where(fanout > 1, crossing, 1.0)
    crosses[SCALE_UP] = 1.0
    # all over one inter-building link
    exchanged = np.where(fanout > 1, crosses * members * (degree - members) / degree, 0.0)
    own, taken = np.array(float(degree)), (fanout - 1) / fanout
    farthest = fanout, members, taken, taken, np.array(0.0), np.zeros((0, 4, NUM_LEVELS))
    return GroupShape(own, fanout, members, crosses, pairs, own, np.array(1.0), exchanged, crosses, *farthest)


def links(bandwidth: dict[int, float], capacity: dict[int, float], latency: dict[int, float]) -> Links:
    def row(values: dict[int, float], default: float) -> np.ndarray:
        return np.array([values.get(level, default) for level in range(NUM_LEVELS)])

    return Links(row(bandwidth, np.inf), row(capacity, np.inf), row(latency, 0.0))


@st.composite
def groups(draw: st.DrawFn) -> tuple[GroupShape, Links]:
    levels = draw(st.lists(st.integers(0, NUM_LEVELS - 1), min_size=1, max_size=3, unique=True))
    shape = even({level: draw(st.sampled_from([2, 3, 4, 8])) for level in levels}, draw(st.sampled_from([1.0, 8.0])))
    rate = st.floats(1e8, 1e12)
    outward = sorted(
        (draw(rate) for _ in range(NUM_LEVELS)), reverse=True
    )  # scale-up links are no slower than adapters
    return shape, links(
        dict(enumerate(outward)),
        {level: draw(rate) * 8 for level in range(NUM_LEVELS)},
        {level: draw(st.floats(0, 0.02)) for level in range(NUM_LEVELS)},
    )


@settings(max_examples=50)
@given(groups(), st.sampled_from(CURVE_OPS), st.floats(1.0, 1e11))
def test_options_are_sorted(group: tuple[GroupShape, Links], op: CurveOp, size: float) -> None:
    found = options(op, size, *group, launch_s=0.0)
    assert [one.time_s for one in found] == sorted(one.time_s for one in found)


@given(groups(), st.sampled_from(CURVE_OPS), st.floats(1.0, 1e11))
def test_the_fastest_option_is_what_a_search_promises(
    group: tuple[GroupShape, Links], op: CurveOp, size: float
) -> None:
    estimated = Group(*group, LAUNCH_S)
    time = {"all_reduce": estimated.all_reduce, "all_to_all": estimated.all_to_all}.get(op, estimated.gather)(
        np.array(size)
    ).time_s
    assert options(op, size, *group, LAUNCH_S)[0].time_s == pytest.approx(float(time))


@settings(max_examples=50)
@given(groups(), st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), st.floats(1.0, 1e11))
def test_a_stated_option_takes_the_time_and_keeps_the_network_busy_as_its_estimate_says(
    group: tuple[GroupShape, Links], op: CurveOp, size: float
) -> None:
    for one in options(op, size, *group, LAUNCH_S):
        choice = CommunicatorChoice.model_validate(
            {"communicator": "dp_shard", "op": op, "payload": "gradients", "chunk_bytes": 1.0, "num_channels": 1}
            | {"algorithm": one.algorithm, "steps": one.steps, "num_chunks": one.num_chunks}
        )
        estimated = Group(*group, LAUNCH_S, network={(op, "gradients"): choice})
        timed = (
            estimated.all_reduce(np.array(size), "gradients")
            if op == "all_reduce"
            else estimated.gather(np.array(size), op, "gradients")  # type: ignore[arg-type]
        )
        assert (one.time_s, one.busy_s) == pytest.approx((float(timed.time_s), float(timed.busy_s)), rel=1e-6)


@given(groups(), st.floats(1.0, 1e11))
def test_the_library_keeps_the_network_busy_with_the_algorithm_that_it_runs(
    group: tuple[GroupShape, Links], size: float
) -> None:
    """If the tree is faster the link carries the tree's bytes.

    The ring has more latencies and fewer bytes.
    """
    shape, plain = group
    own = connected(plain, shape, library_settings(plain))
    best = Group(shape, own, LAUNCH_S)
    ways = [best._way("all_reduce", np.array(size), 2, None, (code,)) for code in (RING, TREE)]
    timed = Group(shape, plain, LAUNCH_S, network="library").all_reduce(np.array(size))
    least_s = min(float(one.time_s) for one in ways)
    assert float(timed.time_s) == pytest.approx(least_s)
    as_fast = [float(one.busy_s) for one in ways if float(one.time_s) == pytest.approx(least_s)]
    assert any(float(timed.busy_s) == pytest.approx(busy) for busy in as_fast)


def test_a_group_of_one_has_nothing_to_choose() -> None:
    shape, free = even({}), links({}, {}, {})
    assert options("all_reduce", 1e9, shape, free, LAUNCH_S) == []


def test_distance_and_size_decide() -> None:
    """Size decides the algorithm over two buildings of 4 zones of 8, 20 ms apart.

    Small messages take few latencies, and large ones are cut into chunks.
    """
    shape = even({SCALE_UP: 8, ZONE: 4, CAMPUS: 2}, crossing=8.0)
    far = links(
        {SCALE_UP: 400e9, ZONE: 45e9, CAMPUS: 45e9},
        {ZONE: 3e12, CAMPUS: 2e12},
        {SCALE_UP: 2e-6, ZONE: 1e-5, CAMPUS: 0.02},
    )
    small, large = (options("all_reduce", size, shape, far, LAUNCH_S)[0] for size in (1e4, 4e9))
    assert (small.num_chunks, large.num_chunks > 1) == (1, True)
    assert small.time_s < 0.0402 + 1e-3
    assert large.algorithm == "hierarchical"


@settings(max_examples=50)
@given(groups(), st.sampled_from(["all_reduce", "all_gather"]), st.floats(1.0, 1e11), st.floats(1e-6, 1e-2))
def test_a_search_promises_no_less_where_chunks_cost_messages(
    group: tuple[GroupShape, Links], op: str, size: float, overhead_s: float
) -> None:
    shape, plain = group
    slow = plain._replace(message_overhead=np.full(NUM_LEVELS, overhead_s))
    price = {
        name: Group(shape, one, LAUNCH_S).all_reduce if op == "all_reduce" else Group(shape, one, LAUNCH_S).gather
        for name, one in (("plain", plain), ("slow", slow))
    }
    time_s = float(price["slow"](np.array(size)).time_s)
    assert options(op, size, shape, slow, LAUNCH_S)[0].time_s == pytest.approx(time_s)  # type: ignore[arg-type]
    assert time_s >= float(price["plain"](np.array(size)).time_s) * (1 - 1e-12)


def test_messages_of_further_chunks_cost_what_each_adds() -> None:
    """Each further chunk costs the time of its own messages.

    Rings run over 4 buildings of 4, in both passes. Every chunk but the first adds 2 · (3 + 3) messages of 50 µs.
    """
    shape = even({RACK: 4, CAMPUS: 4})
    free = links({RACK: 1e9, CAMPUS: 1e9}, {CAMPUS: 1e9}, {RACK: 1e-5, CAMPUS: 1e-3})
    slow = free._replace(message_overhead=np.full(NUM_LEVELS, 5e-5))

    def ways(one: Links) -> dict[int, float]:
        found = options("all_reduce", 64e6, shape, one, 0.0)
        return {way.num_chunks: way.time_s for way in found if way.name == "hierarchical(ring, ring)"}

    without, own = ways(free), ways(slow)
    for chunks, seconds in own.items():
        assert seconds == pytest.approx(without[chunks] + (chunks - 1) * 12 * 5e-5)
    assert min(without, key=without.__getitem__) == 32 and min(own, key=own.__getitem__) < 32


@pytest.mark.parametrize("latency_s", [2e-3, 2e-2])
@pytest.mark.parametrize("buildings", [2, 3, 4])
def test_chunks_of_an_all_reduce_hide_far_latencies_as_played_message_by_message(
    buildings: int, latency_s: float
) -> None:
    g, size, near, thin = 2, 8e6, 312e6, 50e6
    n = g * buildings
    shape = even({RACK: g, CAMPUS: buildings}, crossing=1.0)
    level_links = links({RACK: near, CAMPUS: near}, {CAMPUS: thin}, {RACK: 2e-4, CAMPUS: latency_s})
    found = {(o.name, o.num_chunks): o.time_s for o in options("all_reduce", size, shape, level_links, 0.0)}
    layout = tuple(tuple(range(g * b, g * b + g)) for b in range(buildings))
    for chunks in (1, 4, 16):
        simulation = Simulation(np.array([near] * (2 * n) + [thin] * (2 * buildings)))

        def route(a: int, b: int) -> Route:
            path = [(a, 1.0), (n + b, 1.0)]
            if a // g == b // g:
                return Route(path, 2e-4)
            return Route([*path, (2 * n + a // g, 1.0), (2 * n + buildings + b // g, 1.0)], latency_s)

        schedule = c.layered(c.Operation.ALL_REDUCE, layout, ("ring", "ring"), num_channels=chunks)
        add_collective(simulation, schedule, route, lambda _: size / n)
        assert found["hierarchical(ring, ring)", chunks] == pytest.approx(simulation.run().total_s, rel=0.1)


@pytest.mark.parametrize("chunks", [1, 4, 16])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    "names", [("ring", "ring"), ("halving_doubling", "ring"), ("halving_doubling", "halving_doubling")]
)
def test_the_simulator_takes_as_long(names: tuple[str, str], op: CurveOp, chunks: int) -> None:
    """The simulator takes as long as the options, on 4 buildings of 4 with a narrow port each.

    All options are within 10 % of the simulation of every message, most within 3 %.
    """
    g, k, size, near, thin = 4, 4, 64e6, 1e9, 0.5e9
    n = g * k
    shape = even({SCALE_UP: g, CAMPUS: k}, crossing=1.0)
    level_links = links({SCALE_UP: near, CAMPUS: near}, {CAMPUS: thin}, {SCALE_UP: 1e-5, CAMPUS: 2e-3})
    name = f"hierarchical({names[0]}, {names[1]})"
    found = {(o.name, o.num_chunks): o.time_s for o in options(op, size, shape, level_links, 0.0)}

    simulation = Simulation(np.array([near] * (2 * n) + [thin] * (2 * k)))

    def route(a: int, b: int) -> Route:
        if a // g == b // g:
            return Route([(a, 1.0), (n + b, 1.0)], 1e-5)
        return Route([(2 * n + a // g, 1.0), (2 * n + k + b // g, 1.0)], 2e-3)

    layout = tuple(tuple(range(g * b, g * b + g)) for b in range(k))
    schedule = c.layered(c.Operation(op), layout, names, num_channels=chunks)
    add_collective(simulation, schedule, route, lambda _: size / n)
    assert found[name, chunks] == pytest.approx(simulation.run().total_s, rel=0.1)


@pytest.mark.parametrize(
    ("size", "num_chunks", "chunk", "pieces"),
    [
        (8, 8, 1, 8),  # the call that the choice was made for
        (80, 8, 1, 8),  # larger ones have as many
        (7.9, 8, 1, 4),  # smaller ones keep the least piece, in powers of two
        (1.9, 8, 1, 1),
        (7.9, 8, 4, 4),  # of a choice with larger pieces, too
        (1, 8, 0.25, 4),  # a choice with smaller pieces keeps its own
    ],
)
def test_smaller_calls_have_fewer_pieces(size: float, num_chunks: int, chunk: float, pieces: int) -> None:
    """Sizes over LEAST_PIECE_BYTES."""
    assert num_pieces(size * LEAST_PIECE_BYTES, num_chunks, chunk * LEAST_PIECE_BYTES) == pieces


@pytest.mark.parametrize("n", [2, 3, 5, 6, 8, 13, 16, 17])
def test_halving_and_doubling_has_the_steps_and_peers_of_its_schedule(n: int) -> None:
    """Steps, peers and bytes are those of the schedule that the runtime runs, for any number of children."""
    choice = CommunicatorChoice.model_validate(
        {"communicator": "dp_shard", "op": "all_gather", "payload": "", "algorithm": "hierarchical", "chunk_bytes": 1.0}
        | {"steps": [{"level": "campus", "algorithm": "halving_doubling"}], "num_channels": 1}
        | {
            "connections": [
                {"level": "campus", "queue_pairs": 1, "segment_bytes": 1, "outstanding": 1, "load_balancing": "spray"}
            ]
        }
    )
    for operation in (c.Operation.ALL_GATHER, c.Operation.REDUCE_SCATTER):
        for rank in (0, n - 1):
            steps = list(c.flat(operation, "halving_doubling", n).steps(rank))
            sent = [transfer for step in steps for transfer in step if transfer.kind is c.Kind.SEND]
            peers = {transfer.peer for step in steps for transfer in step}
            assert len(steps) == fewest_steps(np.array(float(n)))
            assert len(peers) == peers_by_level(choice, even({CAMPUS: n}))["campus"]
            assert sum(len(transfer.blocks) for transfer in sent) == n - 1
