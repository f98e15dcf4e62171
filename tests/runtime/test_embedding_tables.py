"""Four processes train tables as a plan shards them: losses and rows are those of one process with whole tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rank_pool import RankPool, join_job

from placed_tables import WAYS, mixed_plan

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

import embedding_cases as cases
import torch

from scaleacross.emitters.embedding_launch import launch_config, render
from scaleacross.errors import EmitError, InputError
from scaleacross.runtime.embedding_tables import EmbeddingTables

STEPS = 5
WITHOUT_COLUMNS = WAYS | {"columns": ("table_wise", (3,), 64)}


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    ranks = RankPool(4)
    ranks.run(join_job)
    yield ranks
    ranks.close()


@pytest.mark.parametrize(
    ("ways", "fields"),
    [
        (WAYS, {}),
        # state is one number per row of a shard, so it is comparable only if the shard has all columns
        (WITHOUT_COLUMNS, {"optimizer": "rowwise_adagrad"}),
        (WITHOUT_COLUMNS, {"replica_groups": [2]}),
    ],
)
def test_losses_and_rows_are_those_of_whole_tables(ways: Any, fields: dict[str, Any], pool: RankPool) -> None:
    text = render(mixed_plan(ways=ways, **fields))["launch.json"]
    losses, tables = cases.whole(text, STEPS)
    assert abs(losses[-1] - losses[0]) > 0.01 * losses[0]
    seen = dict.fromkeys(tables, 0)
    for own, shards in pool.run(cases.sharded, text, STEPS):
        assert own == pytest.approx(losses, rel=1e-5)
        for (name, row, column), shard in shards.items():
            block = tables[name][row : row + len(shard), column : column + shard.shape[1]]
            torch.testing.assert_close(shard, block, rtol=1e-4, atol=1e-6)
            seen[name] += shard.numel()
    copies = {name: 4 if name == "copied" else 2 if fields.get("replica_groups") else 1 for name in tables}
    assert seen == {name: copies[name] * table.numel() for name, table in tables.items()}


@pytest.mark.parametrize(("field", "value"), [("number", -3), ("number", 9), ("row", 10_000), ("row", -2)])
def test_requests_for_what_a_rank_does_not_hold_are_refused_by_name(field: str, value: int, pool: RankPool) -> None:
    text = render(mixed_plan(ways=WAYS))["launch.json"]
    launch = launch_config(mixed_plan(ways=WAYS)).embedding
    assert launch is not None
    for told, tables in pool.run(cases.misdirected, text, 2, field, value):
        assert tables
        assert "global rank 2 asks for" in told and any(f"'{name}'" in told for name in tables)
        assert ("shard" if field == "number" else "row") + f" {value}" in told


def test_what_the_runtime_does_not_execute() -> None:
    with pytest.raises(EmitError, match="exchange_precision=fp32"):
        launch_config(mixed_plan(exchange_precision="fp16"))
    launch = launch_config(mixed_plan()).embedding
    assert launch is not None
    first, *others = launch.tables
    for update, message in (({"kernel": "fused_uvm"}, "dense, fused"), ({"pooled": False}, "sends every row")):
        changed = launch.model_copy(update={"tables": (first.model_copy(update=update), *others)})
        with pytest.raises(InputError, match=message):
            EmbeddingTables(changed, None, None, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="sgd and rowwise_adagrad"):
        EmbeddingTables(launch.model_copy(update={"optimizer": "adam"}), None, None, 0.1)  # type: ignore[arg-type]
