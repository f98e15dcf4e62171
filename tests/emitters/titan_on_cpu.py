"""Run by torchrun under an interpreter with torchtitan 0.3.0 and torch 2.13.0: torchtitan's own training, on CPU over gloo.

What the emitted configuration says stays as it is. What torch 2.13.0 or a CPU lacks is provided here:

* torch 2.13.0 has no ``set_timeout``, and schedules whose ``step`` takes no lists of micro-batches;
* a CPU has no device statistics, no CUDA graphs, and FlexAttention's backward only where it is not compiled;
* gloo has no pre-multiplied sums, so FSDP divides after summing.

Prints ``RESULT rank step loss`` after every step.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch

DEVICE = {
    "get_device_name": "CPU", "get_device_properties": SimpleNamespace(total_memory=1 << 34, name="CPU"),
    "reset_peak_memory_stats": None, "empty_cache": None, "memory_stats": {}, "device_count": 8, "max_memory_allocated": 0,
    "memory_allocated": 0, "current_device": torch.device("cpu"),
}  # fmt: skip


def step(
    self: Any, *, arg_mbs: Any = None, kwarg_mbs: Any = None, target_mbs: Any = None, losses: Any = None,
    loss_kwargs: Any = None, return_outputs: bool = True,
) -> None:  # fmt: skip
    """A schedule's step over micro-batches that are cut already, as torchtitan 0.3.0 calls it."""
    for stage in self._stages if hasattr(self, "_stages") else [self._stage]:
        stage.has_backward = self._has_backward
        stage.clear_runtime_states()
    count = self._n_microbatches
    self._step_microbatches(
        arg_mbs or [()] * count, kwarg_mbs or [{}] * count, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs
    )


def provide() -> None:
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, value in DEVICE.items():
        setattr(torch.cpu, name, lambda *_, answer=value, **__: answer)
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.pipelining import schedules
    from torch.nn.attention import flex_attention

    flex_attention._validate_device = lambda *_: None
    schedules.PipelineScheduleMulti.step = schedules.PipelineScheduleSingle.step = step  # type: ignore[method-assign]
    divide = FSDPModule.set_gradient_divide_factor

    def divide_after(self: Any, factor: float) -> None:
        divide(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = divide_after  # type: ignore[method-assign]
    import torchtitan.distributed.utils
    import torchtitan.trainer as trainer

    torchtitan.distributed.utils.set_pg_timeouts = lambda **_: None
    trainer.wrap_with_cuda_graph = lambda function: function
    trainer.cudagraph_teardown = lambda: None
    forward_backward = trainer.Trainer.forward_backward_step

    def told(self: Any, *words: Any, **named: Any) -> Any:
        loss = forward_backward(self, *words, **named)
        print(f"RESULT {os.environ['RANK']} {self.step} {float(loss)}", flush=True)
        return loss

    trainer.Trainer.forward_backward_step = told


if __name__ == "__main__":
    provide()
    from torchtitan.train import main

    main()
