"""The batch sampler: all ranks agree, every sample at most once, balanced, inside buildings, in packs that fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from scaleacross.errors import InputError  # noqa: E402
from scaleacross.runtime.sampler import BalancedBatchSampler  # noqa: E402

LENGTHS = np.minimum(np.exp(np.random.default_rng(0).normal(6, 1, 1000)), 4000).round()


def samplers(ranks: int = 4, **fields: Any) -> list[BalancedBatchSampler]:
    return [BalancedBatchSampler(LENGTHS, num_replicas=ranks, rank=rank, **fields) for rank in range(ranks)]


def steps(ranks: int = 4, **fields: Any) -> list[tuple[list[int], ...]]:
    own = samplers(ranks, **fields)
    out = list(zip(*own, strict=True))
    assert all(len(one) == len(out) for one in own)
    seen = [sample for step in out for batch in step for sample in batch]
    assert len(seen) == len(set(seen))
    return out


def idle(step: tuple[list[int], ...], quadratic: float = 0.0) -> float:
    costs = [sum(LENGTHS[i] + quadratic * LENGTHS[i] ** 2 for i in batch) for batch in step]
    return 1 - sum(costs) / len(costs) / max(costs)


def test_fixed_counts() -> None:
    found = steps(batch_size=16, quadratic=1e-3)
    assert len(found) == 1000 // 64
    assert all(len(batch) == 16 for step in found for batch in step)
    for step in found:
        costs = [LENGTHS[batch] + 1e-3 * LENGTHS[batch] ** 2 for batch in step]
        whole = np.sort(np.concatenate(costs))
        # the sample of largest cost, with those of least cost
        least = max(whole.sum() / 4, whole[-1] + whole[:15].sum())
        assert max(map(sum, costs)) < 1.01 * least
    plain = [tuple(list(range(64 * k + 16 * r, 64 * k + 16 * r + 16)) for r in range(4)) for k in range(15)]
    assert np.mean([idle(step, 1e-3) for step in found]) < 0.2 * np.mean([idle(step, 1e-3) for step in plain])


def test_variable_counts_and_packs() -> None:
    for step in steps(batch_size=16, fixed_counts=False, max_tokens=20_000):
        assert sum(map(len, step)) == 64 and idle(step) < 0.02
    packed = steps(max_tokens=8192)
    filled = [sum(LENGTHS[batch]) for step in packed for batch in step]
    assert max(filled) <= 8192
    assert np.mean(filled) > 0.95 * 8192


def test_epochs_differ_and_ranks_agree_with_the_data_loader() -> None:
    sampler = samplers(batch_size=8)[1]
    first = list(sampler)
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    data = torch.utils.data.DataLoader(torch.arange(1000), batch_sampler=sampler)
    assert [batch.tolist() for batch in data] == list(sampler)
    assert next(iter(sampler.assignments()))[1] == next(iter(sampler))


def test_no_rank_is_left_without_a_document() -> None:
    packs = BalancedBatchSampler([90] * 11, max_tokens=100, num_replicas=4, rank=3, shuffle=False)
    assert list(packs) == [[3], [7]]  # three documents are left over: too few for four ranks
    with pytest.raises(InputError, match="fill no step"):
        BalancedBatchSampler([90] * 3, max_tokens=100, num_replicas=4, rank=0)


def test_samples_stay_in_their_building() -> None:
    homes = np.where(np.arange(1000) % 5 == 0, "b", "a")
    for step in steps(batch_size=4, homes=homes, rank_homes=["a", "b", "a", "a"]):
        for rank, batch in enumerate(step):
            assert {str(homes[i]) for i in batch} == {"b" if rank == 1 else "a"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give batch_size"),
        ({"batch_size": 0}, "1 or more"),
        ({"batch_size": 2.5}, "whole number"),
        ({"max_tokens": float("nan")}, "whole number"),
        ({"batch_size": 8, "max_tokens": 9}, "fixed_counts=False"),
        ({"max_tokens": 100}, "cut it before"),
        ({"batch_size": 1000}, "fill no step"),
        ({"batch_size": 4, "homes": ["a"] * 1000}, "go together"),
        ({"batch_size": 4, "homes": ["a"] * 1000, "rank_homes": ["b"] * 4}, "where no rank is"),
        ({"batch_size": 4, "homes": ["a"], "rank_homes": ["a"] * 4}, "1 homes for 1,000 samples"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        samplers(**fields)
