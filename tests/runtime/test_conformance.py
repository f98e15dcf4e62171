"""A part of torch's own tests of ``torch.distributed``, on planned schedules; ``conformance.py`` runs them all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")
pytest.importorskip("expecttest", reason="torch's own tests need expecttest (make runtime installs it)")

import conformance

PART = """
    Backend_enum_class DistributedDataParallelCPU DistributedDataParallelCPU_grad_is_view
    DistributedDataParallel_requires_grad accumulate_gradients_no_sync accumulate_gradients_no_sync_allreduce_hook
    accumulate_gradients_no_sync_allreduce_with_then_hook accumulate_gradients_no_sync_grad_is_view all_gather
    all_gather_coalesced_complex all_gather_coalesced_full_group all_gather_coalesced_simple
    all_gather_coalesced_with_empty all_gather_complex all_gather_full_group all_gather_object_default_pg
    all_gather_object_subgroup all_reduce_coalesced_full_group_max all_reduce_coalesced_full_group_min
    all_reduce_coalesced_full_group_product all_reduce_coalesced_full_group_sum all_reduce_coalesced_max
    all_reduce_coalesced_max_complex_unsupported all_reduce_coalesced_min all_reduce_coalesced_product
    all_reduce_coalesced_sum all_reduce_complex_unsupported_ops all_reduce_full_group_max all_reduce_full_group_min
    all_reduce_full_group_product all_reduce_full_group_sum all_reduce_max all_reduce_min all_reduce_product
    all_reduce_sum all_reduce_sum_async all_reduce_sum_complex barrier barrier_full_group barrier_timeout_full_group
    batch_isend_irecv_gloo batch_isend_irecv_gloo_tags broadcast broadcast_full_group ddp_create_graph
    destroy_full_group destroy_group dump_DDP_relevant_env_vars gather gather_checks gather_full_group get_future
    get_rank get_rank_size_full_group get_rank_size_group grads_same_across_ranks_with_no_sync irecv isend
    isend_autograd_profiler isend_torch_profiler reduce_full_group_max reduce_full_group_min reduce_full_group_product
    reduce_full_group_sum reduce_max reduce_min reduce_product reduce_sum reduce_sum_twice scatter scatter_checks
    scatter_complex scatter_full_group scatter_object_list send_recv send_recv_any_source
    send_recv_any_source_autograd_profiler send_recv_any_source_torch_profiler send_recv_autograd_profiler
    send_recv_torch_profiler send_recv_with_tag send_recv_with_tag_autograd_profiler send_recv_with_tag_torch_profiler
    sparse_all_reduce_sum static_graph_api_cpu
"""


def test_what_gloo_passes_passes() -> None:
    tests = [f"test_{name}" for name in PART.split()]
    outcomes = {name: (outcome, why) for name, outcome, why in conformance.run(tests, "cpu:scaleacross")}
    assert {name: why for name, (outcome, why) in outcomes.items() if outcome != "ok"} == {}
