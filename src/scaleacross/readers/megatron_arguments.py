"""Read Megatron-LM's options and values from a launch script, a file of arrays, or a command line, without running any
of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from scaleacross.errors import InputError
from scaleacross.readers.megatron_options import COMMUNICATORS, HARMLESS, NEEDS, READ, REFUSED, REMARKS, is_silent
from scaleacross.readers.shell import Script, read_script
from scaleacross.readers.shell_values import plain

Options = Mapping[str, Sequence[str]]
_UNKNOWN_WORDS: Final = re.compile(r"\$[@*]|\$\{\w+\[[@*]\]\}")
"""Words that stand for any number of words which the file does not state."""


class Arguments(NamedTuple):
    """Option -> its values, and notes for the reader of a result on what was not read."""

    found: dict[str, list[str]]
    notes: tuple[str, ...]


def arguments(text: str, name: str) -> Arguments:
    """Return the options that ``text`` passes to Megatron-LM: those of commands that have some, else of variables.

    Raises:
        InputError: no option at all, a quote left open, a value that only a shell could expand, one option with two
            values, or an option that no plan can express.
    """
    script, unknown, out = read_script(text, name), dict[str, None](), dict[str, list[str]]()
    assumed: dict[str, None] = {}
    for words in _runs(script):
        known = [word for word in words if not _UNKNOWN_WORDS.fullmatch(word)]
        unknown |= dict.fromkeys(word for word in words if _UNKNOWN_WORDS.fullmatch(word))
        for marked, of_it in _options(known):
            option, *values = map(plain, (marked, *of_it))
            if option in READ and [marked, *of_it] != [option, *values]:
                assumed[" ".join([option, *values])] = None
            if out.get(option, values) != values and (option in READ or option in HARMLESS):
                both = " and ".join(" ".join(each) or "nothing" for each in (out[option], values))
                raise InputError(f"{name}: {option} is stated twice, with {both}: leave the one that holds")
            out[option] = values
    if "--num-layers" not in out and "--tensor-model-parallel-size" not in out:
        raise InputError(
            f"{name}: no Megatron-LM arguments found; give a file with an array MEGATRON_ARGS=( … ) or a command line"
        )
    for option in READ & out.keys():
        if any("$" in value or "`" in value for value in out[option]):
            raise InputError(f"{name}: {option} {' '.join(out[option])} needs a shell; write the value itself")
    _refuse(out, name)
    notes = list(_notes(out, script, list(unknown)))
    if assumed:
        notes.append(f"taken by default, where the environment may say otherwise: {', '.join(assumed)}")
    return Arguments(out, tuple(notes))


def _runs(script: Script) -> list[list[str]]:
    """Return the words after the program of commands with Megatron-LM options; without such, those of all variables."""
    bare = next((index for index, words in enumerate(script.commands) if words and words[0].startswith("--")), None)
    if bare is not None:  # options and nothing else, one or more a line
        return [[word for words in script.commands[bare:] for word in words]]
    commands = [[part for word in words for part in _nested(word)] for words in script.commands]
    runs = [words for words in commands if _has_options(words)]
    if not runs:
        texts = [text.split() for text in script.strings.values() if text]
        return [*script.arrays.values(), *(words for words in texts if _has_options(words))]
    programs = [next((at for at, word in enumerate(words) if plain(word).endswith(".py")), -1) for words in runs]
    return [words[program + 1 :] for words, program in zip(runs, programs, strict=True)]


def _has_options(words: Sequence[str]) -> bool:
    return any(plain(word).partition("=")[0] in READ for word in words)


def _nested(word: str) -> list[str]:
    """Return the words of a command inside ``word`` (``bash -c "torchrun …"``), or ``word`` alone."""
    inner = word.split()
    return inner if len(inner) > 1 and _has_options(inner) else [word]


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    option, values = "", list[str]()
    for word in words:
        if not word.startswith("--"):
            values.append(word)
            continue
        if option:
            yield option, values
        option, _, value = word.partition("=")
        values = [value] if value else []
    if option:
        yield option, values


def _refuse(found: Options, name: str) -> None:
    for option, why in REFUSED.items():
        if option in found:
            raise InputError(f"{name}: {option}: {why}")
    for option, needed in NEEDS.items():
        if option in found and not found.keys() & set(needed):
            raise InputError(f"{name}: {option} without {' or '.join(needed)}, and Megatron-LM stops")
    for option, (values, why) in HARMLESS.items():
        if option in found and (len(found[option]) != 1 or found[option][0] not in values):
            raise InputError(f"{name}: {' '.join([option, *found[option]])}: {why}")


def _notes(found: Options, script: Script, unknown: Sequence[str]) -> Iterator[str]:
    known = READ | HARMLESS.keys() | REMARKS.keys() | {COMMUNICATORS}
    if rest := [option for option in found if option not in known and not is_silent(option)]:
        yield f"options that were not read, and may change time or memory: {', '.join(rest)}"
    for option, (priced, remark) in REMARKS.items():
        if option in found and not (found[option] and set(found[option]) <= set(priced)):
            yield f"{' '.join([option, *found[option]]) if priced else option}: {remark}"
    branches = [
        word for words in script.conditional.values() for option, _ in _options(_parts(words)) for word in [option]
    ]
    if assumed := [option for option in dict.fromkeys(branches) if option in READ and option in found]:
        yield f"the script states these under a condition, which is taken to hold: {', '.join(assumed)}"
    if unknown:
        yield f"words that only the shell knows were not read: {' '.join(unknown)}"


def _parts(words: Sequence[str]) -> list[str]:
    return [part for word in words for part in word.split()]
