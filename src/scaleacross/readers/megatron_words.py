"""The options of a Megatron-LM launch script, as words: what bash arrays or a command line state."""

from __future__ import annotations

import re
import shlex
from typing import Final

from scaleacross.errors import InputError

TO_RUN: Final = re.compile(
    r"--(data|tokenizer|vocab|merge|save|load|log|tensorboard|wandb|eval|exit|ckpt|timing|profile|nproc|nnodes|node|master|rdzv|"
    r"distributed|split|seed|train|lr|min-lr)\b"
)
"""Options of the launcher, of data and of logs, which change neither time nor memory: what only a shell could expand may stand
there."""


def words(text: str, name: str) -> dict[str, list[str]]:
    """Option -> its values, from bash arrays, all of them, or from a command line.

    Raises:
        InputError: no option at all, a quote left open, an option with two values, or one that only a shell could expand.
    """
    arrays = re.findall(r"\w+=\(\n?(.*?)\n?\s*\)\s*(?=\n|$)", text, re.S)
    try:
        found = shlex.split("\n".join(arrays) if arrays else text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
    stated: list[tuple[str, list[str]]] = []
    for word in found:
        if word.startswith("--"):
            option, _, value = word.partition("=")
            stated.append((option, [value] if value else []))
        elif stated:
            stated[-1][1].append(word)
    out: dict[str, list[str]] = {}
    for option, values in stated:
        if out.setdefault(option, values) != values:
            raise InputError(f"{name}: {option} is stated as {' '.join(out[option])} and {' '.join(values)}; keep one")
    if "--num-layers" not in out and "--tensor-model-parallel-size" not in out:
        raise InputError(
            f"{name}: no Megatron-LM arguments found; give a file with an array MEGATRON_ARGS=( … ) or a command line"
        )
    for option, values in out.items():
        if any("$" in value for value in values) and not TO_RUN.match(option):
            raise InputError(f"{name}: {option} {' '.join(values)} needs a shell; write the value itself")
    if "--nccl-communicator-config-path" in text:
        out.setdefault("--nccl-communicator-config-path", [])
    return out
