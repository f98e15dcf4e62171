"""Words of a shell script, as far as they are known without running it.

Assignments to arrays and strings are followed in the file's order, with bash's rules for quotes and comments. Defaults
of variables and arithmetic are computed (``shell_values``). What only a shell could expand (``$1``, ``$(…)``, variables
of the environment) stays in the word with its ``$``.
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
"""A command after one of these runs under a condition: the result of the command before it."""
_BRACKETS = {"(": ")", "{": "}"}
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n.*?^[ \t]*\2[ \t]*$", re.S | re.M)
_MOST = 1_000_000
"""Most characters of one variable, far beyond any command line."""


@dataclass
class Script:
    """The variables that a script assigns and the commands that it runs.

    Attributes:
        arrays: words of every array at the end of the file.
        strings: text of every string at the end of the file; None where branches assign different texts.
        commands: words of every command, expanded.
        conditional: variable -> words added under a condition; the words of all branches are included.
    """

    arrays: dict[str, list[str]] = field(default_factory=dict)
    strings: dict[str, str | None] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    conditional: dict[str, list[str]] = field(default_factory=dict)

    def add(self, command: list[str], depth: int) -> None:
        """Add one command or assignment that is nested ``depth`` conditions deep."""
        while command and (command[0] in _DECLARING or command[0] in ("then", "do", "else", *_CHAINING)):
            # a command after && or || is one condition deeper
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
            # under a condition the words of all branches are kept, because any of them may run
            self.arrays[name] = [*(self.arrays.get(name, []) if appended or depth else []), *filled]
            return
        before = self.strings.get(name)
        text = (before or "") * appended + " ".join(self._expand(value, split=False))
        # a variable that branches have made unknown stays unknown
        if before is None and name in self.strings and (depth or appended):
            return
        # options added under a condition are kept as such; any other change makes the text unknown
        if depth and before is not None and before != text:
            added = text.removeprefix(before).lstrip()
            if not (text.startswith(before) and added.startswith("--")):
                self.strings[name] = None  # one of several branches
                return
            self.conditional.setdefault(name, []).append(added)
        self.strings[name] = text

    def expanded(self, raw: list[str]) -> list[str]:
        """Return words without quotes, with variables replaced by their values."""
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
    """Parse ``text`` of file ``name``. Raises InputError where a quote or bracket is left open."""
    script, depth = Script(), 0
    try:
        for command in _commands(_HERE_DOCUMENT.sub("\n", text), name):
            depth += (command[0] in _OPENING) - (command[0] in _CLOSING)
            script.add(command, max(depth, 0))
    except RecursionError:
        raise InputError(f"{name}: brackets inside brackets, too many to follow") from None
    return script


def _split(word: str) -> list[str]:
    """Split the word of an unquoted expansion at blanks, as the shell does; quoted parts inside it stay together."""
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
    """Yield the raw words of every command; an array assignment is one word including its brackets."""
    words: list[str] = []
    word, at = "", 0
    # one step beyond the end acts as a line end, so that the last command is yielded
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
        # inside a word, # is an ordinary character
        elif here == "#" and not word:
            at = end - 1 if (end := text.find("\n", at)) >= 0 else len(text) - 1
        else:
            end = _piece_end(text, at, name)
            word += text[at:end]
            at = end - 1
        at += 1


def _piece_end(text: str, at: int, name: str) -> int:
    """Return the end of the piece at ``at``: a quoted or bracketed part, an escaped character, or one character."""
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
    """Return the index after the bracket that closes the one at ``at``; 0 where none does."""
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
