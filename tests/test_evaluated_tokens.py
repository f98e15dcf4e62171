"""A plan whose sequence length changes says what becomes of its tokens."""

from __future__ import annotations

from pathlib import Path

import scaleacross as sa
from instances import plain_job


def test_another_sequence_length_says_what_becomes_of_the_tokens(tmp_path: Path) -> None:
    """A plan.json states its batch in sequences, so that longer sequences are more tokens."""
    small = sa.plan(
        plain_job(2, degrees={"tp": 1, "cp": 1, "pp": 1}, schedules=["1F1B"], global_batch_sequences=64),
        alternatives=False,
    )
    path = tmp_path / "plan.json"
    path.write_text(small.model_dump_json())
    longer, tokens = small.job.sequence_length * 2, small.job.tokens_per_step

    def notes(*overrides: str) -> str:
        return "; ".join(sa.evaluate(path, overrides=[f"sequence_length={longer}", *overrides]).report.notes)

    assert f"{2 * tokens:,} tokens a step, {tokens:,} before; --set global_batch_tokens={tokens} keeps" in notes()
    assert "tokens a step" not in notes(f"global_batch_tokens={tokens}")
    assert "tokens a step" not in "; ".join(sa.evaluate(path).report.notes)
