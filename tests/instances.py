"""Small problems: random ones that are equal for equal seeds, and plain ones to modify.

Random ones have up to three unequal buildings, toy models, and a job that fixes some of its choices. Trying every plan
then takes about a second.

Figures span wide ranges on purpose. A link between buildings may be wider than a rack, an outer level faster than an
inner one, and memory too small. A solver that is right only on sensible machines would pass otherwise.
"""

from __future__ import annotations

import random
from typing import Any

from scaleacross.spec.job import Job
from scaleacross.spec.plan import Plan
from scaleacross.workloads.problem import Problem, problem_of

MIB = 2**20


def instance(seed: int) -> Problem:
    """The problem of a seed."""
    return problem_of(random_job(seed))


def random_job(seed: int) -> Job:
    """A self-contained job: workload and topology are mappings."""
    rng = random.Random(seed)
    workload = _workload(rng)
    topology = _topology(rng)
    _measure(random.Random(f"curves {seed}"), topology)
    batch = rng.choice([6, 8, 8, 12])
    data: dict[str, Any] = {
        "name": f"instance-{seed}",
        "workload": workload,
        "topology": topology,
        "sequence_length": rng.choice([2048, 2048, 4096]),
        "global_batch_sequences": batch,
        "context_exchange": ["ring"],  # test_context_exchange.py opens it: brute force tries each on every candidate
        "memory_headroom_fraction": 0.0,  # plans may use all of the drawn memory
    }
    return Job.model_validate(data | _pins(rng, topology, "num_experts" in workload))


def mixed_instance(seed: int) -> Problem:
    """The problem of a seed with two buildings or more, unequal in size, of two accelerator types."""
    return problem_of(mixed_job(seed))


def mixed_job(seed: int) -> Job:
    """A job with few candidates and many balances: most degrees are fixed.

    Types differ in speed, memory or both, and some hosts are spare.
    """
    rng = random.Random(f"mixed {seed}")
    num_buildings = rng.choice([2, 2, 2, 3])
    memory_mib = rng.choice([40.0, 60.0, 80.0, 150.0, 1000.0, 1000.0, 1000.0])
    types = [accelerator(rng, "slow", memory_mib), accelerator(rng, "fast", memory_mib * rng.choice([0.7, 1.0, 2.0]))]
    types[0]["peak_tflop_per_s"], types[1]["peak_tflop_per_s"] = (
        {"bf16": 20.0},
        {"bf16": rng.choice([30.0, 40.0, 80.0])},
    )
    host, shared = rng.choice([2, 2, 4]), _links(rng)
    buildings = [
        {
            "name": f"b{index}",
            "accelerator": types[index % 2 if index < 2 else rng.randrange(2)],
            "accelerators_per_host": host,
            "hosts_per_rack": rng.choice([1, 2]),
            "racks_per_zone": rng.choice([1, 2]),
            "num_hosts": rng.randint(1, (10 if num_buildings == 2 else 8) // host),
            "scale_up_domain": "host",
            "links": shared if rng.random() < 0.6 else _links(rng),
        }
        for index in range(num_buildings)
    ]
    trunks = _trunks(rng, num_buildings)
    for trunk in trunks:
        if rng.random() < 0.7:  # otherwise one building alone is usually best
            trunk |= {"bandwidth_gbyte_per_s": 50.0, "one_way_latency_us": 20.0, "oversubscription_ratio": 1.0}
    topology = {"name": "mixed", "regions": _regions(rng, buildings), "trunks": trunks}
    workload = _workload(rng)
    data: dict[str, Any] = {
        "name": f"mixed-{seed}",
        "workload": workload,
        "topology": topology,
        "sequence_length": 2048,
        "global_batch_sequences": rng.choice([8, 12, 16, 24]),
        "context_exchange": ["ring"],  # test_context_exchange.py opens it: brute force tries each on every candidate
        "memory_headroom_fraction": 0.0,
    }
    data |= _mixed_pins(rng, "num_experts" in workload)
    if rng.random() < 0.4:
        several = [building for building in buildings if building["num_hosts"] > 1]
        data["spare_hosts"] = {building["name"]: 1 for building in several}
    if rng.random() < 0.2:
        data["failure_domains"] = {"level": rng.choice(["zone", "building"]), "max_replicas_lost": rng.choice([1, 2])}
    return Job.model_validate(data)


def computing_job(seed: int) -> Job:
    """A job whose types have different names but equal, slow computation.

    It has few micro-batches, and its layers do not divide over the ranks.
    """
    data, rng = mixed_job(seed).model_dump(mode="json", exclude_none=True), random.Random(f"computing {seed}")
    for region in data["topology"]["regions"]:
        for building in region["buildings"]:
            building["accelerator"] |= {"peak_tflop_per_s": {"bf16": 0.2}, "memory_bytes": 2.0**31}
    data["workload"] |= {"num_layers": rng.choice([5, 7, 9]), "vocabulary_size": 1000}
    data |= {"schedules": ["1F1B", "Interleaved1F1B"], "num_chunks": [1, 2]}
    data |= {"global_batch_sequences": rng.choice([4, 8])}
    data["degrees"] |= {"pp": {"min": 2, "max": 4}, "dp_replicate": {"max": 4}, "tp": 1, "cp": 1}
    return Job.model_validate(data)


def _mixed_pins(rng: random.Random, has_experts: bool) -> dict[str, Any]:
    """Fixed choices: pipelines, replicas or both, and one value of everything else."""
    pipeline = rng.choice([["1F1B"], ["1F1B"], ["GPipe"], ["Interleaved1F1B"]])
    shard = rng.choice([["none"], ["optimizer"], ["none", "optimizer"], ["parameters"]])
    open_to = [1, 2] if "none" in shard else [2, [2, 4]]
    degrees: dict[str, Any] = {
        "tp": rng.choice([1, 1, 1, 2]),
        "cp": 1,
        "pp": rng.choice([1, 2, 2, 3, 4, [1, 2], [2, 3], {"max": 4}]),
        "ep": rng.choice([1, {"max": 2}]) if has_experts else 1,
        "dp_shard": rng.choice(open_to) if shard != ["none"] else 1,
        "dp_replicate": rng.choice([1, 2, 3, [1, 2], [2, 4], {"max": 4}]),
    }
    return {
        "micro_batch_sequences": [1],
        "recompute": [rng.choice(["none", "selective", "full"])],
        "num_chunks": rng.choice([[1, 2], [1, 2, 3]]),
        "schedules": pipeline,
        "shard": shard,
        "degrees": degrees,
    }


def accelerator(rng: random.Random, name: str, memory_mib: float) -> dict[str, Any]:
    """A toy accelerator with an H100's proportions."""
    return {
        "name": name,
        "peak_tflop_per_s": {"bf16": rng.choice([20.0, 50.0, 100.0])},
        "memory_bytes": memory_mib * MIB,
        "memory_bandwidth_gbyte_per_s": rng.choice([300.0, 1000.0]),
        "reserved_memory_bytes": 16 * MIB,
        "num_multiprocessors": rng.choice([8, 16]),
        "gemm_tile_rows": 64,
        "gemm_tile_cols": 64,
        "gemm_efficiency_fraction": 0.7,
        "attention_efficiency_fraction": 0.5,
        "memory_efficiency_fraction": 0.9,
        "kernel_launch_us": rng.choice([0.0, 2.0]),
    }


def link(gbyte_per_s: float, latency_us: float, oversubscription: float = 1.0) -> dict[str, Any]:
    """One level of a building."""
    technology = {"name": "wire", "bandwidth_gbyte_per_s": gbyte_per_s, "efficiency_fraction": 0.8}
    return {
        "technology": technology,
        "one_way_latency_us": latency_us,
        "oversubscription_ratio": oversubscription,
    }


def _links(rng: random.Random) -> dict[str, Any]:
    """Links of a building.

    They usually get slower from level to level; in one instance of four any order is possible.
    """
    rates = [rng.choice([10.0, 50.0, 100.0]), *rng.choices([2.0, 5.0, 10.0, 20.0], k=3)]
    latencies = rng.choices([0.5, 1.0, 3.0, 10.0], k=4)
    if rng.random() < 0.75:
        rates, latencies = sorted(rates, reverse=True), sorted(latencies)
    narrow = [1.0, *(rng.choice([1.0, 1.0, 2.0, 7.0]) for _ in range(3))]
    names = ("scale_up", "rack", "zone", "building")
    return {name: link(*figures) for name, *figures in zip(names, rates, latencies, narrow, strict=True)}


def _topology(rng: random.Random) -> dict[str, Any]:
    num_buildings = rng.choice([1, 2, 2, 2, 3])
    memory_mib = rng.choice([40.0, 60.0, 100.0, 200.0, 1000.0, 1000.0])
    types = [accelerator(rng, f"type-{index}", memory_mib * (1 + index)) for index in range(rng.choice([1, 1, 2]))]
    per_host = rng.choice([2, 2, 4, 8])
    shared = _links(rng) if rng.random() < 0.6 else None
    buildings = []
    for index in range(num_buildings):
        host = per_host if rng.random() < 0.8 else rng.choice([2, 4])
        most = (24 if num_buildings < 3 else 16) // host
        buildings.append(
            {
                "name": f"b{index}",
                "accelerator": rng.choice(types),
                "accelerators_per_host": host,
                "hosts_per_rack": rng.choice([1, 2]),
                "racks_per_zone": rng.choice([1, 2]),
                "num_hosts": rng.randint(1, most),
                "scale_up_domain": rng.choice(["host", "host", "rack"]),
                "links": shared or _links(rng),
            }
        )
    return {"name": "small", "regions": _regions(rng, buildings), "trunks": _trunks(rng, num_buildings)}


def _measure(rng: random.Random, topology: dict[str, Any]) -> None:
    """Give the scale-up technology of some buildings measured curves, of some operations and group sizes."""
    if rng.random() < 0.6:
        return
    operations = rng.sample(["all_gather", "reduce_scatter", "all_reduce", "all_to_all"], k=rng.randint(1, 4))
    for region in topology["regions"]:
        for building in region["buildings"]:
            if rng.random() < 0.8:
                scale_up = building["links"]["scale_up"]
                rate = scale_up["technology"]["bandwidth_gbyte_per_s"] * 1e9 * rng.choice([0.3, 0.8, 1.2])
                curves = [
                    _curve(rng, op, ranks, rate) for op in operations for ranks in rng.choice([(2,), (2, 4), (4, 8)])
                ]
                technology = scale_up["technology"] | {"curves": curves}
                building["links"] = building["links"] | {"scale_up": scale_up | {"technology": technology}}


def _curve(rng: random.Random, op: str, num_ranks: int, bytes_per_s: float) -> dict[str, Any]:
    latency_s, share = rng.choice([1e-6, 5e-6, 20e-6]), (num_ranks - 1) / num_ranks
    twice = 2 if op == "all_reduce" else 1
    times = {2**log: latency_s * num_ranks**0.5 + twice * share * 2**log / bytes_per_s for log in range(10, 31, 4)}
    return {"op": op, "num_ranks": num_ranks, "time_s": times}


def _regions(rng: random.Random, buildings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cut = rng.choice([len(buildings), len(buildings), rng.randint(1, len(buildings))])
    parts = [part for part in (buildings[:cut], buildings[cut:]) if part]
    return [{"name": f"region-{index}", "buildings": part} for index, part in enumerate(parts)]


def _trunks(rng: random.Random, num_buildings: int) -> list[dict[str, Any]]:
    pairs = [(a, b) for a in range(num_buildings) for b in range(a + 1, num_buildings)]
    if num_buildings == 3 and rng.random() < 0.5:
        pairs.remove(rng.choice(pairs))  # a chain: one pair talks through the third building
    return [
        {
            "between": [f"b{a}", f"b{b}"],
            "bandwidth_gbyte_per_s": rng.choice([None, 0.5, 5.0, 50.0]),
            "oversubscription_ratio": rng.choice([1.0, 4.0, 16.0]),
            "one_way_latency_us": rng.choice([0.0, 20.0, 1000.0, 20000.0]),
        }
        for a, b in pairs
    ]


def _workload(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice([2, 4, 4])
    common = {
        "name": "toy",
        "num_layers": rng.choice([3, 4, 6, 8]),
        "hidden_size": 64 * heads,
        "num_heads": heads,
        "vocabulary_size": rng.choice([1000, 4000]),
        "tied_embedding": rng.random() < 0.3,
    }
    kv_heads = rng.choice([heads, heads // 2])
    if rng.random() < 0.6:
        mlp = {"intermediate_size": 192 * heads, "gated_mlp": rng.random() < 0.5}
        return {"family": "dense_transformer", "num_kv_heads": kv_heads, "head_dim": 64, **common, **mlp}
    experts = {"num_experts": rng.choice([2, 4, 6, 8]), "top_k": rng.choice([1, 2]), "expert_intermediate_size": 128}
    if rng.random() < 0.5:
        experts |= {"num_dense_layers": 1, "dense_intermediate_size": 192 * heads}
    attention = {"kind": "gqa", "num_kv_heads": kv_heads, "head_dim": 64}
    return {"family": "moe_transformer", "attention": attention, **common, **experts}


def _pins(rng: random.Random, topology: dict[str, Any], has_experts: bool) -> dict[str, Any]:
    """Fixed choices that leave a few hundred candidates of every kind."""
    pins: dict[str, Any] = {
        "micro_batch_sequences": rng.choice([[1], [1], [1, 2], [2]]),
        "recompute": rng.choice([["none"], ["full"], ["none", "full"], ["selective"]]),
        "num_chunks": rng.choice([[1, 2], [1, 2], [1, 2, 3]]),
        "schedules": rng.choice([["1F1B"], ["GPipe", "1F1B"], ["1F1B", "Interleaved1F1B"], ["Interleaved1F1B"]]),
        "shard": rng.choice(
            [["none", "optimizer"], ["optimizer"], ["parameters", "none"], ["none", "optimizer", "parameters"]]
        ),
    }
    num_buildings = sum(len(region["buildings"]) for region in topology["regions"])
    degrees: dict[str, Any] = {}
    for axis, choices in {
        "tp": (1, 2, [1, 2], [1, 2], {"max": 4}),
        "cp": (1, 1, 1, 2, [1, 2]) if num_buildings < 3 else (1,),
        "pp": ({"max": 4}, {"min": 2, "max": 4}, [1, 2], [1, 3], {"max": 4}),
        "ep": (None, None, 1, {"min": 2, "max": 8} if has_experts else None),
        "dp_shard": (None, None, {"min": 2, "max": 16}),
        "dp_replicate": ({"max": 2}, None, 1, [1, 2]) if num_buildings < 3 else (1, 1, [1, 2]),
    }.items():
        choice = rng.choice(choices)
        if choice is not None:
            degrees[axis] = choice
    if rng.random() < 0.1:
        buildings = [building for region in topology["regions"] for building in region["buildings"]]
        sizes = [building["num_hosts"] * building["accelerators_per_host"] for building in buildings]
        pins["num_accelerators"] = rng.choice([max(sizes), sum(sizes), 8])
    if rng.random() < 0.2:
        hidden = {name: rng.random() < 0.5 for name in ("gradient_reduce", "parameter_gather", "pipeline_messages")}
        pins["overlap"] = hidden | {"tp_fraction": rng.choice([0.0, 0.7])}
    return pins | {"degrees": degrees}


def plain_building(name: str, num_hosts: int, **changes: Any) -> dict[str, Any]:
    """A building of hosts of 4, racks of 2 hosts, zones of 2 racks; 100, 20, 20 and 10 GB/s from level to level."""
    return {
        "name": name,
        "accelerator": accelerator(random.Random(0), "plain", 1000.0),
        "accelerators_per_host": 4,
        "hosts_per_rack": 2,
        "racks_per_zone": 2,
        "num_hosts": num_hosts,
        "links": {
            "scale_up": link(100.0, 1.0),
            "rack": link(20.0, 2.0),
            "zone": link(20.0, 4.0),
            "building": link(10.0, 6.0),
        },
    } | changes


def plain_trunk(here: str, there: str, gbyte_per_s: float = 20.0, latency_us: float = 20.0) -> dict[str, Any]:
    """A link between buildings that is narrower than the buildings."""
    return {"between": [here, there], "bandwidth_gbyte_per_s": gbyte_per_s, "one_way_latency_us": latency_us}


def plain_topology(*num_hosts: int, apart: bool = False, **changes: Any) -> dict[str, Any]:
    """Buildings b0, b1, … with links in a chain. ``apart`` puts each in a region of its own."""
    buildings = [plain_building(f"b{index}", hosts, **changes) for index, hosts in enumerate(num_hosts)]
    groups = [[building] for building in buildings] if apart else [buildings]
    regions = [{"name": f"region-{index}", "buildings": group} for index, group in enumerate(groups)]
    trunks = [plain_trunk(f"b{index}", f"b{index + 1}") for index in range(len(buildings) - 1)]
    return {"name": "plain", "regions": regions, "trunks": trunks}


def plain_job(*num_hosts: int, topology: dict[str, Any] | None = None, **changes: Any) -> Job:
    """A dense model of 8 layers on plain buildings. ``changes`` fix choices; all others are open."""
    workload = {
        "family": "dense_transformer",
        "name": "toy",
        "num_layers": 8,
        "hidden_size": 256,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 64,
        "intermediate_size": 768,
        "vocabulary_size": 1000,
        "gated_mlp": True,
        "tied_embedding": False,
    }
    data = {
        "name": "plain",
        "workload": workload,
        "topology": topology or plain_topology(*num_hosts),
        "sequence_length": 4096,
        "global_batch_sequences": 16,
    }
    return Job.model_validate(data | changes)


def moe(**changes: Any) -> dict[str, Any]:
    """Eight layers with 8 experts, for ``plain_job(workload=…)``."""
    return {
        "family": "moe_transformer",
        "name": "toy-moe",
        "num_layers": 8,
        "hidden_size": 256,
        "num_heads": 4,
        "attention": {"kind": "gqa", "num_kv_heads": 4, "head_dim": 64},
        "num_experts": 8,
        "top_k": 2,
        "expert_intermediate_size": 128,
        "vocabulary_size": 1000,
        "tied_embedding": False,
    } | changes


def unexpected_notes(plan: Plan) -> list[str]:
    """Notes of a plan except the usual ones.

    Usual ones are about the quick search, the scope of the bound and the error of the estimate.
    """
    usual = ["not tried, as the space is quick", "the bound is one on layouts", "the estimate of"]
    if plan.report.objective is not None:
        usual.append(
            "the bound is one on equal stages on one accelerator type: unequal ones are tried for the least step"
        )
    return [note for note in plan.report.notes if not note.startswith(tuple(usual))]
