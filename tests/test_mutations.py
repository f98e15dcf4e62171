"""Hand-made errors (``benchmarks/mutations.py``) can still be inserted, and the seeded ones are detected."""

from __future__ import annotations

import pytest
from mutations import MUTATIONS, PACKAGE, ROOT, SEEDED, times_found, try_out


def test_every_mutation_changes_one_place_and_still_compiles() -> None:
    assert len(MUTATIONS) == 30 == len({one.name for one in MUTATIONS})
    assert set(SEEDED) <= {one.name for one in MUTATIONS}
    for one in MUTATIONS:
        times = times_found(one)
        assert times == 1, f"{one.name} is stale: {one.old!r} stands {times} times in {one.file}; move it along"
        source = (ROOT / PACKAGE / one.file).read_text(encoding="utf-8")
        compile(source.replace(one.old, one.new), one.file, "exec")
        assert all((ROOT / "tests" / path).exists() for path in one.tests.split()), f"{one.name}: tests have moved"


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDED)
def test_seeded_faults_raise_a_flag(name: str) -> None:
    """Every seeded fault raises a flag.

    Counts, textbook figures or the simulation detect it, with code that does not share the faulty line.
    """
    mutation = next(one for one in MUTATIONS if one.name == name)
    verdict, by = try_out(mutation)
    assert verdict == "killed", by
