"""GB/s of the runtime's Triton kernels against a device copy of as many bytes, and whether their bits are the references'.

    python benchmarks/kernel_bandwidth.py [--mib 256]

Needs an accelerator that torch calls ``cuda``; without one it says so and measures nothing: the interpreter's times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch

from scaleacross.runtime.block_codec import BlockCodec
from scaleacross.runtime.codecs import CODECS


def main() -> int:
    """Print one JSON line per kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of one fp32 buffer")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no accelerator is present: nothing was measured", file=sys.stderr)
        return 1
    from triton.testing import do_bench

    values = torch.randn((arguments.mib << 20) // 4, device="cuda")
    copy = torch.empty_like(values)
    copy_bytes_per_s = 2 * values.nbytes / (do_bench(lambda: copy.copy_(values)) * 1e-3)
    for name, run, num_bytes, equal in cases(values):
        bytes_per_s = num_bytes / (do_bench(run) * 1e-3)
        record = {"kernel": name, "device": torch.cuda.get_device_name(), "gb_per_s": bytes_per_s / 1e9}
        print(json.dumps(record | {"of_copy": bytes_per_s / copy_bytes_per_s, "same_bits": equal()}))
    return 0


def cases(values: torch.Tensor) -> list[tuple[str, Callable[[], object], int, Callable[[], bool]]]:
    """(name, what runs, bytes read and written, whether its bits are those of the reference on the CPU)."""
    from scaleacross.runtime.kernels.block_codec import decode, encode

    out: list[tuple[str, Callable[[], object], int, Callable[[], bool]]] = []
    for codec in (codec for codec in CODECS.values() if isinstance(codec, BlockCodec)):
        data = torch.empty(codec.most_bytes(values.numel()), dtype=torch.uint8, device=values.device)
        back, expected = torch.empty_like(values), torch.empty(data.shape, dtype=torch.uint8)
        codec.write(values.cpu(), expected)
        num_bytes = values.nbytes + data.nbytes
        out.append((f"encode {codec.name}", lambda c=codec, d=data: encode(c, values, d), num_bytes,
                    lambda d=data, e=expected: _same(d, e)))  # fmt: skip
        decoded = codec.read(expected, values.numel()).contiguous()
        out.append((f"decode {codec.name}", lambda c=codec, d=data, b=back: decode(c, d, b), num_bytes,
                    lambda b=back, e=decoded: _same(b, e)))  # fmt: skip
    return out


def _same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(got.cpu().view(torch.uint8), expected.view(torch.uint8))


if __name__ == "__main__":
    sys.exit(main())
