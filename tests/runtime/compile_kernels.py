"""Compile kernels for targets without their hardware, and print their assembly.

    python compile_kernels.py TARGET,... KERNEL...     (targets: 80, 90, 100, gfx942)

A process of its own: the interpreter of other tests must be off, and a failing backend may abort.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

Case = tuple[Any, dict[str, Any], dict[str, Any], list[str]]
"""kernel, signature by argument, constants, arguments that are multiples of 16"""


def _block(name: str, codec: str) -> Case:
    from scaleacross.runtime.codecs import CODECS
    from scaleacross.runtime.kernels import block_codec

    mantissa, exponent, vanishing, is_float, bits = block_codec._constants(CODECS[codec])  # type: ignore[arg-type]
    shape = {"ROWS": block_codec.ROWS, "GRAIN": block_codec.GRAIN, "IS_FLOAT": is_float, "BITS": bits}
    scale = {"MANTISSA": mantissa, "EXPONENT": exponent, "VANISHING": vanishing}
    if name == "encode":
        signature = {"values": "*fp32", "exponents_out": "*u8", "codes_out": "*u8", "numel": "i64"}
        return block_codec.encode_kernel, signature, scale | shape, ["values", "codes_out", "numel"]
    signature = {"exponents_in": "*u8", "codes_in": "*u8", "out": "*fp32", "numel": "i64"}
    return block_codec.decode_kernel, signature, shape, ["codes_in", "out", "numel"]


def _bounded(name: str) -> Case:
    from scaleacross.runtime.kernels import bounded

    shape = {"ROWS": bounded.ROWS, "GRAIN": bounded.GRAIN}
    sizes = {"exponent": "i32", "numel": "i64", "num_blocks": "i64"}
    if name == "widths":
        return bounded.widths_kernel, {"values": "*fp32", "widths": "*u8"} | sizes, shape, ["values", "numel"]
    memory = {"words": "*i32", "widths": "*u8", "starts": "*i64"}
    if name == "pack":
        return bounded.pack_kernel, {"values": "*fp32"} | memory | sizes, shape, ["values", "words", "numel"]
    return bounded.unpack_kernel, memory | {"out": "*fp32"} | sizes, shape, ["words", "out", "numel"]


def _shuffle(name: str) -> Case:
    from scaleacross.runtime.kernels import shuffle

    if name == "rank":
        signature = {"destinations": "*i64", "ranks": "*i64", "counts": "*i64", "num_rows": "i64"}
        return shuffle.rank_kernel, signature, {"BLOCK": shuffle.BLOCK}, ["destinations", "num_rows"]
    constants = {"SCATTER": name == "scatter", "ROWS": shuffle.TILE[0], "COLUMNS": shuffle.TILE[1]}
    signature = {"source": "*bf16", "slots": "*i64", "out": "*bf16", "num_rows": "i64", "width": "i64"}
    return shuffle.move_kernel, signature, constants, ["source", "out", "width"]


def _rows(name: str) -> Case:
    from scaleacross.runtime.kernels import row_codec

    if name == "quantise":
        memory = {"values": "*fp32", "figures": "*fp64", "codes": "*i32", "off": "*u8", "numel": "i64"}
        return row_codec.quantise_kernel, memory, {"BLOCK": row_codec.BLOCK}, ["values", "codes", "off", "numel"]
    sizes = {"count": "i64", "num_groups": "i64", "width": "i32"}
    kernel = row_codec.pack_kernel if name == "pack" else row_codec.unpack_kernel
    return kernel, {"numbers": "*i32", "words": "*i32"} | sizes, {"GROUPS": row_codec.GROUPS}, ["numbers", "words"]


CASES: dict[str, Callable[[], Case]] = {
    "encode_int8": lambda: _block("encode", "int8_block"),
    "encode_fp8": lambda: _block("encode", "fp8_block"),
    "encode_int4": lambda: _block("encode", "int4_block"),
    "decode_int4": lambda: _block("decode", "int4_block"),
    "decode_int8": lambda: _block("decode", "int8_block"),
    "decode_fp8": lambda: _block("decode", "fp8_block"),
    "rank_rows": lambda: _shuffle("rank"),
    "scatter_rows": lambda: _shuffle("scatter"),
    "gather_rows": lambda: _shuffle("gather"),
    "bounded_widths": lambda: _bounded("widths"),
    "bounded_pack": lambda: _bounded("pack"),
    "bounded_unpack": lambda: _bounded("unpack"),
    "rows_quantise": lambda: _rows("quantise"),
    "rows_pack": lambda: _rows("pack"),
    "rows_unpack": lambda: _rows("unpack"),
}


def assembly(name: str, target: str) -> str:
    """PTX, or AMD assembly."""
    kernel, signature, constants, multiples = CASES[name]()
    names = kernel.arg_names
    attributes = {}
    for argument in multiples:
        index, kind = names.index(argument), signature[argument]
        paths = [(index, k) for k in range(len(kind))] if isinstance(kind, tuple) else [(index,)]
        attributes |= {path: [["tt.divisibility", 16]] for path in paths}
    types = {argument: signature.get(argument, "constexpr") for argument in names}
    source = ASTSource(kernel, types, {(names.index(key),): value for key, value in constants.items()}, attributes)
    gpu = GPUTarget("hip", target, 64) if target.startswith("gfx") else GPUTarget("cuda", int(target), 32)
    compiled = triton.compile(source, target=gpu, options={"num_warps": 8})
    return str(compiled.asm["amdgcn" if target.startswith("gfx") else "ptx"])


if __name__ == "__main__":
    for target in sys.argv[1].split(","):
        for case in sys.argv[2:]:
            print(f"=== {target} {case}\n{assembly(case, target)}")
