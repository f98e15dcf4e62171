"""Bounds on mixed pools know sharded passes, the path of one micro-batch and full memory, and stay below exact steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cases import each
from instances import moe, plain_job, plain_topology, plain_trunk
from scaleacross.catalogue import load_job, quick_job
from scaleacross.catalogue.quick_start import Start
from scaleacross.cost_models.candidates import candidate_of, concatenate
from scaleacross.solvers.every_placement import EveryPlacement, balanced, placer_on
from scaleacross.solvers.mixed_memory import layers_that_fit
from scaleacross.solvers.mixed_pools import bounder_on
from scaleacross.solvers.pools import pools
from scaleacross.solvers.search_space import Refusals, SearchSpace
from scaleacross.spec.job import Job
from scaleacross.spec.parallelism import Degrees
from scaleacross.spec.plan import Decision, PipelineChoice
from scaleacross.workloads.problem import problem_of

CANDIDATES, PLACES = 24, 2
QUICK = (0, 1, 9, 16)  # something fits on both types
SLACK = 1 + 1e-9


def passing_job(seed: int) -> Job:
    """Two types of unlike speed, memory and links; layers that do not divide; few micro-batches or many."""
    rng = random.Random(f"unlike passes {seed}")
    topology = plain_topology(1, 1)
    types = [
        ("small", 20.0, rng.choice([120, 250, 2000])),
        ("large", rng.choice([30.0, 60.0]), rng.choice([250, 500, 2000])),
    ]
    for building, (name, peak, memory) in zip(topology["regions"][0]["buildings"], types, strict=True):
        building["accelerator"] |= {"name": name, "peak_tflop_per_s": {"bf16": peak}, "memory_bytes": memory * 2**20}
    topology["trunks"] = [plain_trunk("b0", "b1", gbyte_per_s=rng.choice([4.0, 400.0]))]
    job = plain_job(
        topology=topology,
        degrees={"tp": 1, "cp": [1, 2], "ep": 1},
        schedules=["1F1B", "GPipe", "Interleaved1F1B", "ZBH1"],
        num_chunks=[1, 2, 3],
        shard=["parameters", "gradients", "optimizer"],
        recompute=["none", "full"],
        micro_batch_sequences=[1, 2],
        global_batch_sequences=rng.choice([8, 24, 48]),
    )
    data = job.model_dump(mode="json", exclude_unset=True)
    data["workload"] |= {"num_layers": rng.choice([6, 11, 17]), "vocabulary_size": rng.choice([1000, 64000])}
    return Job.model_validate(data)


def expert_job(seed: int) -> Job:
    """The same pools with experts that weigh more than their tokens: what they gather decides most steps."""
    rng, data = random.Random(f"experts {seed}"), passing_job(seed).model_dump(mode="json", exclude_unset=True)
    dense = {"num_dense_layers": rng.choice([1, 3]), "dense_intermediate_size": rng.choice([64, 12000])}
    size = rng.choice([1024, 8192, 32768])
    data["workload"] = moe(num_layers=rng.choice([6, 9, 12]), expert_intermediate_size=size, **rng.choice([{}, dense]))
    for building in data["topology"]["regions"][0]["buildings"]:
        building["accelerator"]["memory_bytes"] = 64_000 * 2**20
    changed = {
        "sequence_length": rng.choice([128, 512]),
        "degrees": {"tp": [1, 2], "cp": [1, 2], "ep": [1, 2, 4]},
        "expert_folding": ["none", "tp_cp"],
        "shard": ["parameters", "gradients", "parameters_once"],
    }
    return Job.model_validate(data | changed)


@pytest.mark.heavy
@pytest.mark.parametrize("make", [passing_job, expert_job])
@each("seed", QUICK[::2], range(24), size=4)
def test_no_bound_is_above_an_exact_step(make: Callable[[int], Job], seed: int) -> None:
    problem, rng = problem_of(make(seed)), np.random.default_rng(seed)
    pool = pools(problem.topology)[0]
    placer = placer_on(pool, problem.job, problem.profile)
    assert isinstance(placer, EveryPlacement)
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    rows = concatenate(list(space.batches(Refusals())))
    rows, compared = rows.take(rng.permutation(len(rows))[:CANDIDATES]), 0
    room, fullest = layers_that_fit(problem.job, problem.profile, pool.buildings, rows)
    coarse = placer.bounder.coarse(rows)
    tight = placer.bounder.tight(coarse)
    for row in range(len(rows)):
        one = rows.take(np.array([row]))
        for _, balance, _, places in placer._balanced(one, None)[:4]:
            assert room[row] >= problem.profile.num_layers, one.decision(0)
            assert max(map(sum, balance.split)) >= fullest[row], (one.decision(0), balance)
            decision = balanced(one.decision(0), balance)
            for place in rng.permutation(len(places))[:PLACES]:
                exact = placer._step_s(decision, places[place]) * SLACK
                above = {"coarse": coarse.bound_s[row] / exact, "tight": tight.bound_s[row] / exact}
                assert max(above.values()) <= 1, (above, decision)
                compared += 1
    assert compared > 0 or seed not in QUICK


def test_the_bound_knows_what_experts_gather() -> None:
    """DeepSeek-V3 with sharded parameters: a rank gathers its experts twice per micro-batch, whatever its type."""
    start = Start(
        model="deepseek-v3", gpus="h100:2048,b200:1024", trunk="16x400G", km=30, tokens="16M", sequence="4096"
    )
    problem = problem_of(load_job(quick_job(start)))
    pool = next(one for one in pools(problem.topology) if len(one.accelerators) == 2)
    degrees = Degrees(pp=3, dp_shard=1024, ep=8)
    pipeline = PipelineChoice(schedule="Interleaved1F1B", num_chunks=2, micro_batch_sequences=1)
    decision = Decision(degrees=degrees, pipeline=pipeline, recompute="selective", shard="parameters")
    candidates = candidate_of(decision, problem.job.global_batch_sequences)
    whole = sum(layer.num_expert_parameters * count for layer, count in problem.profile.blocks)
    on_a_rank = whole / degrees.pp / degrees.ep
    gathered = 2 * int(candidates.num_micro_batches[0]) * on_a_rank * problem.job.gathered_bytes
    nic_bytes_per_s = 50e9  # 400 Gbit/s: an adapter of either type
    bound_s = bounder_on(pool, problem.job, problem.profile).coarse(candidates).bound_s[0]
    assert bound_s >= gathered / nic_bytes_per_s * 0.9  # members on the same host gather over NVLink


@each("seed", (0, 1), range(24), size=4, heavy=(2, 3))
def test_light_layers_make_room_for_as_many_as_there_are(seed: int) -> None:
    """Layers of two kinds, of unlike weight: were all the lightest, far more would seem to fit."""
    rng = random.Random(f"room {seed}")
    data = passing_job(seed).model_dump(mode="json", exclude_unset=True)
    dense = {"num_dense_layers": rng.choice([1, 3]), "dense_intermediate_size": rng.choice([64, 12000])}
    data["workload"] = moe(num_layers=rng.choice([9, 12]), expert_intermediate_size=1024, **dense)
    data["degrees"] = {"tp": 1, "cp": 1, "ep": 1, "pp": {"min": 2}}
    memory = rng.choice([500, 800, 1200])
    for building, times in zip(data["topology"]["regions"][0]["buildings"], (1, rng.choice([1.5, 3])), strict=True):
        building["accelerator"]["memory_bytes"] = int(memory * times) * 2**20
    problem = problem_of(Job.model_validate(data))
    pool = pools(problem.topology)[0]
    placer = placer_on(pool, problem.job, problem.profile)
    assert isinstance(placer, EveryPlacement)
    space = SearchSpace(problem.job, problem.profile, pool.num_accelerators, pool.unit)
    rows = concatenate(list(space.batches(Refusals())))
    room, fullest = layers_that_fit(problem.job, problem.profile, pool.buildings, rows)
    num_layers = problem.profile.num_layers
    alike = [replace(problem.profile, blocks=((block, num_layers),)) for block, _ in problem.profile.blocks]
    lightest = np.max([layers_that_fit(problem.job, one, pool.buildings, rows)[0] for one in alike], axis=0)
    assert (room <= lightest).all()
    assert ((room < num_layers) & (lightest >= num_layers)).any() or (room >= num_layers).all()
    for row in np.random.default_rng(seed).permutation(len(rows))[:48]:
        trials = placer._balanced(rows.take(np.array([row])), None)
        for trial in trials:
            assert room[row] >= num_layers, (rows.decision(row), trial.balance)
            assert max(map(sum, trial.balance.split)) >= fullest[row], (rows.decision(row), trial.balance)
