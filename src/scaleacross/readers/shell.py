"""Words of a shell script, as far as they can be told without running it.

Arrays and strings that the file fills are followed in its order, quotes and comments as bash has them; defaults of variables and
arithmetic are computed (``shell_values``). What only a shell could expand (``$1``, ``$(…)``, variables of the environment) stays
in the word with its ``$``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scaleacross.errors import InputError
from scaleacross.readers.shell_values import computed

_ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.S)
_ARRAY = re.compile(r'("?)\$\{(\w+)\[[@*]\]\}\1')
_SCALAR = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_DEFAULTED = re.compile(r"\$\{\w+(?!\[[@*]\]\})[^\w}]")
_INNER_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_DECLARING = frozenset({"export", "local", "readonly", "declare", "typeset", "-a", "-x", "-r", "-ax", "-gx"})
_OPENING, _CLOSING = frozenset({"if", "case", "for", "while", "until"}), frozenset({"fi", "esac", "done"})
_CHAINING = ("&&", "||")
"""What runs behind one hangs on the command before it."""
_BRACKETS = {"(": ")", "{": "}"}
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n.*?^[ \t]*\2[ \t]*$", re.S | re.M)
_MOST = 1_000_000
"""Characters of one variable: far beyond any command line."""


@dataclass
class Script:
    """What a script fills and runs.

    Attributes:
        arrays, strings: words of every array, text of every string, as they are at the end of the file.
        commands: words of every command, expanded; whether it runs under a condition.
        conditional: words that arrays, and strings by adding, get under a condition; all of its branches are in them.
    """

    arrays: dict[str, list[str]] = field(default_factory=dict)
    strings: dict[str, str | None] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    conditional: dict[str, list[str]] = field(default_factory=dict)

    def add(self, command: list[str], depth: int) -> None:
        """One command or assignment, ``depth`` conditions deep."""
        while command and (command[0] in _DECLARING or command[0] in ("then", "do", "else", *_CHAINING)):
            depth += command[0] in _CHAINING
            command = command[1:]
        assigned = [_ASSIGNMENT.fullmatch(word) for word in command]
        if not command or not all(assigned):
            self.commands.append(self.expanded(command))
            return
        for found in assigned:
            if found is not None:
                self._assign(found[1], found[3], appended=bool(found[2]), depth=depth)

    def _assign(self, name: str, value: str, *, appended: bool, depth: int) -> None:
        if sum(map(len, self.arrays.get(name, []))) + len(self.strings.get(name) or "") > _MOST:
            raise InputError(f"variable {name} grows beyond {_MOST:,} characters")
        if value.startswith("("):
            filled = self.expanded([word for command in _commands(value[1:-1], "") for word in command])
            if depth:
                self.conditional.setdefault(name, []).extend(filled)
            self.arrays[name] = [*(self.arrays.get(name, []) if appended or depth else []), *filled]
            return
        before = self.strings.get(name)
        text = (before or "") * appended + " ".join(self._expand(value, split=False))
        if before is None and name in self.strings and (depth or appended):
            return
        if depth and before is not None and before != text:
            added = text.removeprefix(before).lstrip()
            if not (text.startswith(before) and added.startswith("--")):
                self.strings[name] = None  # one of several branches
                return
            self.conditional.setdefault(name, []).append(added)
        self.strings[name] = text

    def expanded(self, raw: list[str]) -> list[str]:
        """Words without quotes, in place of names what they stand for."""
        return [word for one in raw for word in self._expand(one)]

    def _expand(self, raw: str, *, split: bool = True) -> list[str]:
        if (found := _ARRAY.fullmatch(raw)) and found[2] in self.arrays:
            words = self.arrays[found[2]]
            return list(words) if found[1] else [part for word in words for part in _split(word)]

        def text(found: re.Match[str]) -> str:
            value = self.strings.get(found[1] or found[2])
            return found[0] if value is None else value

        def joined(found: re.Match[str]) -> str:
            return " ".join(self.arrays[found[1]]) if found[1] in self.arrays else found[0]

        if raw.startswith("'") or "$" not in raw:
            return [_unquoted(raw)]
        bare = '"' not in raw and "'" not in raw
        raw = computed(raw, self.strings)
        value = _SCALAR.sub(text, _INNER_ARRAY.sub(joined, raw if bare else _unquoted(raw)))
        return _split(value) if split and bare else [value]


def read_script(text: str, name: str) -> Script:
    """The script ``text`` of file ``name``. Raises InputError: a quote or bracket left open."""
    script, depth = Script(), 0
    try:
        for command in _commands(_HERE_DOCUMENT.sub("\n", text), name):
            depth += (command[0] in _OPENING) - (command[0] in _CLOSING)
            script.add(command, max(depth, 0))
    except RecursionError:
        raise InputError(f"{name}: brackets inside brackets, too many to follow") from None
    return script


def _split(word: str) -> list[str]:
    """A word of an unquoted expansion, which the shell splits at blanks; quotes that were inside it stay together."""
    try:
        return shlex.split(word) if "$(" not in word and "`" not in word else [word]
    except ValueError:
        return word.split()


def _unquoted(raw: str) -> str:
    if "$(" in raw or "`" in raw or _DEFAULTED.search(raw):
        return raw
    try:
        return "".join(shlex.split(raw if "'" in raw else raw.replace("\\\n", "")))
    except ValueError:  # ends in a backslash
        return raw


def _commands(text: str, name: str) -> Iterator[list[str]]:
    """Raw words of every command; an assignment of an array is one word with its brackets."""
    words: list[str] = []
    word, at = "", 0
    while at <= len(text):
        here = text[at] if at < len(text) else "\n"
        if text[at : at + 2] == "\\\n":
            here, at = " ", at + 1
        if here in " \t\r\n;&|" or (here in "()" and not re.fullmatch(r"\w+\+?=", word)):
            words += [word] if word else []
            word = ""
            if here not in " \t\r" and words and words[-1] not in _CHAINING:
                yield words
                words = []
            if text[at : at + 2] in _CHAINING:
                words, at = [text[at : at + 2]], at + 1
        elif here == "#" and not word:
            at = end - 1 if (end := text.find("\n", at)) >= 0 else len(text) - 1
        else:
            end = _piece_end(text, at, name)
            word += text[at:end]
            at = end - 1
        at += 1


def _piece_end(text: str, at: int, name: str) -> int:
    """Where what begins at ``at`` ends: a quoted or bracketed part, an escaped character, or one character."""
    here = text[at]
    if here == "'":
        return _closed(text, at, name, lambda last: text.find("'", last) + 1)
    if here == '"':
        return _closed(text, at, name, lambda last: _quote_end(text, last))
    if here == "(" or (here == "$" and text[at + 1 : at + 2] in _BRACKETS):
        return _closed(text, at, name, lambda last: _bracket_end(text, last - (here == "("), name))
    return min(at + 1 + (here == "\\"), len(text))


def _closed(text: str, at: int, name: str, end_from: Callable[[int], int]) -> int:
    end = end_from(at + 1)
    if end <= 0:
        raise InputError(f"{name}: line {text.count(chr(10), 0, at) + 1}: No closing quotation or bracket")
    return end


def _quote_end(text: str, at: int) -> int:
    found = re.compile(r'(?:[^"\\]|\\.)*"', re.S).match(text, at)
    return found.end() if found else 0


def _bracket_end(text: str, at: int, name: str) -> int:
    """Behind the bracket that closes the one at ``at``; 0: none does."""
    closing, last = _BRACKETS[text[at]], at + 1
    while last < len(text):
        if text[last] == closing:
            return last + 1
        if text[last] == "#" and closing == ")" and text[last - 1].isspace():
            end = text.find("\n", last)
            last = end if end >= 0 else len(text)
        elif text[last] in "({" and text[last] == text[at]:
            last = _bracket_end(text, last, name) or len(text)
        else:
            last = _piece_end(text, last, name)
    return 0
