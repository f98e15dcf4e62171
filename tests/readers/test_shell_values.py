"""Defaults of variables and arithmetic in launch scripts have the values that bash gives them."""

from __future__ import annotations

import subprocess

import pytest

import scaleacross as sa
from scaleacross.readers.megatron_arguments import arguments
from scaleacross.readers.shell import read_script
from scaleacross.readers.shell_values import plain

SCRIPTS = [
    "echo ${TP:-4} ${PP-2}",
    "TP=8\necho ${TP:-4} ${TP-4}",
    "TP=\necho x${TP:-4}y x${TP-4}y",
    "A=${B:-${C:-5}}\necho $A ${A:-6}",
    ': "${EP:=64}"\necho $EP ${EP}',
    "N=8\necho $((4 * N)) $(( $N / 3 + 1 )) $(((N - 1) * 2)) $((7 % 4)) $((-7 / 2)) $((-7 % 4))",
    'OUT=${1:-"a/b c"}\necho "$OUT" $OUT',
    "GPUS=${GPUS:-8}; NODES=${NODES:-4}\nWORLD=$((GPUS * NODES))\necho $((WORLD / 8))",
    "L=2\necho ${M:-$L} ${M:-x$L}",
    'A=(--x ${TP:-4} x${TP:-4})\necho "${A[@]}"',
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_values_are_those_of_bash(script: str) -> None:
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    echoed = [words[1:] for words in read_script(script, "x").commands if words[0] == "echo"]
    assert [" ".join(map(plain, words)) for words in echoed] == done.stdout.splitlines()


@pytest.mark.parametrize(
    "value",
    [
        "${TP:-$OTHER}", "$((UNKNOWN * 2))", "$((1 / 0))", "$((2 ** 3))", "${TP:?set it}", "$(nproc)", "${TP:-$(nproc)}",
        "$((OCTAL * 2))", "$((010 * 2))",
    ],
)  # fmt: skip
def test_what_cannot_be_told_stays_and_is_refused(value: str) -> None:
    with pytest.raises(sa.InputError, match=r"--num-layers .* needs a shell; write the value itself"):
        arguments(f"OCTAL=010\ntorchrun p.py --num-layers {value} --bf16", "x")


def test_a_default_that_decides_is_named_and_others_are_not() -> None:
    text = (
        "TP=${TP:-2}\nLR=${LR:-1e-4}\nN=$((TP * 4))\nSEQ=$((4 * 1024))\n"
        'ARGS="--num-layers $N --seq-length $SEQ --lr $LR --tensor-model-parallel-size=$TP"\n'
        "torchrun ${SCRIPT:-pretrain_gpt.py} $ARGS ${MORE:---bf16 --sequence-parallel}\n"
    )
    found = arguments(text, "x")
    assert found.found == {
        "--num-layers": ["8"], "--seq-length": ["4096"], "--lr": ["1e-4"], "--tensor-model-parallel-size": ["2"],
        "--bf16": [], "--sequence-parallel": [],
    }  # fmt: skip
    assert found.notes == (
        "taken by default, where the environment may say otherwise: --num-layers 8, --tensor-model-parallel-size 2, --bf16, "
        "--sequence-parallel",
    )


def test_a_default_of_an_empty_word_states_nothing() -> None:
    assert arguments("torchrun p.py --num-layers 4 ${EXTRA:-} ${MORE-}", "x").found == {"--num-layers": ["4"]}
