"""A search multiplies matrices on one thread and restores the caller's number of threads."""

import numpy  # noqa: F401  # brings the library whose threads are counted
from threadpoolctl import threadpool_info, threadpool_limits

import scaleacross as sa
from instances import plain_job
from scaleacross.spec.progress import Progress


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_plan_multiplies_on_one_thread() -> None:
    during = set[int]()

    def look(_: Progress) -> None:
        during.update(blas_threads())

    with threadpool_limits(2, "blas"):
        before = blas_threads()
        sa.plan(plain_job(2, 2, degrees={"cp": 1}), work_limit=1, alternatives=False, simulated=False, progress=look)
        assert (before, during, blas_threads()) == ({2}, {1}, {2})
