"""Sentences compared without their numbers, and the wordings that were changed on purpose.

A line becomes a template, in which every number of its own stands as `#`, and the numbers themselves. Digits inside a
name (`transformer_blocks.0`, `fp64`, `1x184x128`) belong to the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

NUMBER = re.compile(r"(?<![\w.:@/-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?=x?(?![\w.]\w)(?!\w)|%)")
TIMES = re.compile(r" x\b")
MACHINE = re.compile(r"[-+]?\d+(?:\.\d+)?(?= ?(?:s|ms|seconds|bytes|kB|MB|GB|MiB|GiB)\b)")
"""Times and sizes, which no snapshot keeps."""

HASH = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{12,64}\b")
"""Fingerprints of what another machine rounds otherwise, and commits."""


@dataclass(frozen=True, slots=True)
class Reworded:
    """A wording that was changed on purpose.

    Attributes:
        old: what the snapshot says; every occurrence is replaced.
        new: what is said now, as for `re.sub`: a template, or a function of the match.
    """

    old: re.Pattern[str]
    new: str | Callable[[re.Match[str]], str]


def _first_divergence(old: re.Match[str]) -> str:
    """A reason that names a place by words, and says how far in one clause."""
    step, branch, module, port, part, how, far, ratio = old.groups()
    what, _, rest = port.partition(".")
    named = f"{module} {'input' if what == 'in' else 'output'}{' ' * bool(rest)}{rest}"
    named = f"{what} {rest} the step" if module == "loop" else named
    named += f", {part} tokens" if part else ""
    ways = {
        "its inputs agree and its output does not": "inputs match, output",
        "this input differs although everything before it agrees": "everything before it matches, this input",
        "the difference only grew there": "grown from smaller differences before it, this value",
    }
    where = f"step {step}" + (f", {branch}" if branch else "")
    return f"first divergence: {named} ({where}): {ways[how]} differs by {far} relative L2, {ratio}x the rounding floor"


def _record_of_step(match: re.Match[str]) -> str:
    """A line of `inspect --step` as one fact a line, its site first."""
    names = ("stage", "branch", "site", "call", "dtype", "shape", "min", "max", "l2", "bad", "floor", "holds")
    cells = {name: cell or "-" for name, cell in zip(names, match[1].split("\t"), strict=True)}
    site = cells.pop("site")
    return f"record {site}: " + "; ".join(f"{name} {cell}" for name, cell in cells.items())


REWORDED: tuple[Reworded, ...] = (
    # What two goldens agree in is said as of two live sides.
    Reworded(re.compile(r"\b1 equal, fingerprint"), "equal, fingerprint"),
    Reworded(re.compile(r"(\d+) equal$"), r"\1 tensors equal"),
    # A reason names its place in words, and says how far in one clause.
    Reworded(
        re.compile(
            r"the paths part at transformer step (\d+)(?: (cond|uncond))? ([\w.]+):([\w.]+)(?:@(\w+))?: ([a-z ]+) "
            r"\(relative L2 (\S+), (\S+) x its floor\)"
        ),
        _first_divergence,
    ),
    Reworded(re.compile("noise_pred and latents are still within their floors"), "noise_pred and latents still match"),
    Reworded(
        re.compile("without a verdict there is no cause"),
        "the comparison could not be judged, so there is nothing to explain",
    ),
    # One plain form for every command: `label: text`, `noun name: column cell; ...`.
    Reworded(re.compile(r"^settings\t([^\t]*)\t([^\t]*)$"), r"setting \1: value \2"),
    Reworded(
        re.compile(r"^parts\t([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$"), r"part of step \1: file \2; records \3; size \4"
    ),
    Reworded(re.compile(r"^step -?\d+\t(.*)$"), _record_of_step),
    Reworded(re.compile(r"^([^\t]+)\t([^\t]*)$"), r"\1: \2"),
    # A divergence is introduced, not born.
    Reworded(
        re.compile(r"born at the input \(it differs although its producer agreed\)"),
        "introduced at the input (it differs, its producer matches)",
    ),
    Reworded(
        re.compile(r"born in the module \(its inputs agree, its output differs\)"),
        "introduced in the module (its inputs match, its output differs)",
    ),
    Reworded(re.compile(r"; remarks amplified"), "; remarks carried over"),
    Reworded(re.compile(r"amplified \(only grown, not begun, here\)"), "carried over (grown here, not introduced)"),
    # One step is no steps.
    Reworded(re.compile(r"(\d+ sites) of 1 steps agree"), r"\1 of 1 step agree"),
    Reworded(re.compile(r"\b1 steps written to"), "1 step written to"),
    Reworded(re.compile(r"1 steps fall from (\S+) to \S+;"), r"1 step, at \1;"),
)
"""In this order, each over the result of the ones before. Whoever changes a sentence enters it here, in the same
commit; a wording that nothing was meant to change is a difference."""


def reworded(text: str, changes: tuple[Reworded, ...] = REWORDED) -> str:
    """A snapshot's text as it would be worded today."""
    for change in changes:
        text = change.old.sub(change.new, text)
    return text


def template(text: str, *, hashes: bool = False) -> str:
    """The text with `#` for its numbers, `<machine>` for times and sizes, and `<hash>` for fingerprints.

    Args:
        hashes: leave fingerprints as they are.
    """
    text = text if hashes else HASH.sub("<hash>", text)
    text = MACHINE.sub("<machine>", text)
    return NUMBER.sub("#", text)


def numbers(text: str) -> list[str]:
    """The numbers of a text as they stand there, with the `x` or `%` after them."""
    text = MACHINE.sub("<machine>", HASH.sub("<hash>", text))
    return [found[0] + _unit(text, found.end()) for found in NUMBER.finditer(text)]


def _unit(text: str, end: int) -> str:
    if text[end : end + 1] in ("x", "%"):
        return text[end]
    return "x" if TIMES.match(text, end) else ""
