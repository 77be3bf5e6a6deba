"""Regular expressions from strangers: those that could take exponential time are refused rather than timed.

Problem. Python's `re` backtracks, and a pattern of ten characters can run for years; a timeout would need a process.

How. One scan of the pattern, before `re` compiles it. Refused are backreferences, lookarounds and flags, a choice (`|`,
`?` or an open repetition) inside a repetition, more than four open repetitions, and more than eight other choices.
Whether what is left is a regular expression at all, `re` itself says.

Cost. Microseconds; what is taken matches 256 characters in half a second at worst.
"""

from __future__ import annotations

import re

from parity.golden.strict import MalformedError, shown

MAX_OPEN = 4
"""Open repetitions in a pattern: matching takes at most the path's length to this power, over its factorial."""

MAX_CHOICES = 8
"""`|` and `?` in a pattern: each may double the time."""

_BOUND = re.compile(r"\{(\d*)(,?)(\d*)\}")


def refuse_costly(source: str, name: str) -> None:
    """Refuse what could take exponential time, by one scan of the pattern; `re` itself says whether it is valid.

    Raises:
        MalformedError: naming the rule and what is refused.
    """
    # For each open group whether there is a choice in it; `last` is that of the group that ended just before.
    stack, last = [False], False
    opened = choices = at = 0
    while at < len(source):
        char = source[at]
        step, ended = 1, False
        if char == "\\":
            step = 2
            if source[at + 1 : at + 2].isdecimal():
                raise MalformedError(f"{name}: 'from' refers back to a group, which is refused: it can take for ever")
        elif char == "[":
            step = _class_end(source, at) - at
        elif char == "(":
            step = _group_start(source, at, name)
            stack.append(False)
        elif char == ")" and len(stack) > 1:
            ended = stack.pop()
            stack[-1] |= ended
        elif char == "|":
            stack[-1] = True
            choices += 1
        elif char in "*+?{":
            step, many, is_open = _quantifier(source, at)
            if many and last:
                raise MalformedError(f"{name}: 'from' repeats a group that holds a choice (| ? * +), which is refused")
            stack[-1] |= is_open or char == "?"
            opened += is_open
            choices += char == "?"
        last = ended
        at += step
    if opened > MAX_OPEN:
        raise MalformedError(f"{name}: 'from' has {opened} open repetitions, more than {MAX_OPEN}")
    if choices > MAX_CHOICES:
        raise MalformedError(f"{name}: 'from' has {choices} choices (| and ?), more than {MAX_CHOICES}")


def _class_end(source: str, at: int) -> int:
    """The position behind a `[...]`; a `]` that comes first belongs to the class."""
    at += 1
    at += source[at : at + 1] == "^"
    first = True
    while at < len(source) and (source[at] != "]" or first):
        at += 2 if source[at] == "\\" else 1
        first = False
    return at + 1


def _group_start(source: str, at: int, name: str) -> int:
    """Length of `(`, `(?:` or `(?P<name>`; every other extension is refused."""
    if source[at + 1 : at + 2] != "?":
        return 1
    if source.startswith("(?:", at):
        return 3
    named = re.compile(r"\(\?P<\w+>").match(source, at)
    if named is None:
        raise MalformedError(
            f"{name}: 'from' may hold (...), (?:...) and (?P<name>...), found {shown(source[at:][:8])}"
        )
    return named.end() - at


def _quantifier(source: str, at: int) -> tuple[int, bool, bool]:
    """(length, whether it can repeat more than once, whether the count is open) of the quantifier at a position."""
    char = source[at]
    if char != "{":
        length, many, is_open = 1, char != "?", char != "?"
    else:
        bound = _BOUND.match(source, at)
        if bound is None or not (bound[1] or bound[3]):
            return 1, False, False  # a brace as such
        least, most = bound[1] or "0", bound[3] if bound[2] else bound[1]
        length, many, is_open = bound.end() - at, most not in ("0", "1"), most != least
    # `*?` and `*+` only say how a repetition matches.
    return length + (source[at + length : at + length + 1] in ("?", "+")), many, is_open
