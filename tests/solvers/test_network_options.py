"""Options of a collective have the same times in one array as in a plan, where each is timed alone."""

from __future__ import annotations

import numpy as np
import pytest

from scaleacross.catalogue import load_topology
from scaleacross.cost_models.groups import exact_shape
from scaleacross.cost_models.levels import NUM_LEVELS, build_levels
from scaleacross.cost_models.links import links_of
from scaleacross.cost_models.traffic import Flow
from scaleacross.solvers.network_options import Between, Wire, choice_time, flow_options
from scaleacross.spec.network_choice import Compression
from scaleacross.spec.placement import BuildingShare
from scaleacross.workloads.equal_copies import EVERY_COPY

CODEC = Compression(
    codec="fp8_block",
    levels=("campus",),
    ratio=1.9,
    encode_bytes_per_s=1e12,
    decode_bytes_per_s=1e12,
    relative_error=0.01,
)


@pytest.mark.parametrize(
    "flow",
    [
        Flow("dp", "all_reduce", "gradients", "dp_replicate", 3e8, {"gradients": 1.0}),
        Flow("dp", "reduce_scatter", "gradients", "dp_shard", 3e8, {"gradients": 1.0}),
        Flow("tp", "all_gather", "activations", "tp", 7e7, {"forward": 1.0}),
        Flow("ep", "all_to_all", "tokens", "ep", 7e7, {"forward": 1.0}),
        Flow("pp", "send", "activations", "pp", 7e7, {"message": 1.0}),
    ],
    ids=lambda flow: flow.op,
)
def test_options_estimated_together_equal_those_estimated_alone(flow: Flow) -> None:
    allocation = [BuildingShare(building=name, num_accelerators=64) for name in ("building-a", "building-b")]
    levels = build_levels(load_topology("two_buildings_unequal"), allocation)
    hashed = np.arange(NUM_LEVELS) >= 1
    between = Between(windows=(1e6,), spreads=(4,), channels=(2,))
    wire = Wire(exact_shape(32, 4, levels), links_of(levels), 1e-5, EVERY_COPY, hashed, (CODEC,), 0.1, between=between)
    options = flow_options(flow, wire, waited=True)
    assert len({option.choice for option in options}) == len(options) > 5
    for option in options:
        alone = choice_time(flow, option.choice, wire)
        assert (option.time_s, option.busy_s) == (float(alone.time_s[0]), float(alone.busy_s[0])), option.choice
    assert any(option.choice.compression for option in options) == (flow.what == "gradients")
    chunks = {option.choice.num_chunks for option in options}
    assert len(chunks) > 1 or flow.op in ("all_to_all", "send")
