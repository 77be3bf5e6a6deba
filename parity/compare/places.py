"""Places of a comparison: whose code makes a value, whichever block it is in, and in which words a list says so."""

from __future__ import annotations

import re

from parity.records import BLOCK, LOOP, MODELS, SCHEDULE, any_block, caller_of

AROUND = ("", LOOP, SCHEDULE, "decode")
"""What is no module of the model."""
_LOOP = {
    "noise_pred": "guidance", "latents.after": "the scheduler's step", "latents.before": "the latents",
    "pred_original.before": "the prediction before", "history": "the scheduler's step",
    "step_index": "the scheduler's place",
}  # fmt: skip


_ITEM = r"(?<=\w)\.\d+$"
"""Of an argument that is a tuple, as a table of cosines and one of sines: the number of its item."""


def block_of(path: str) -> str:
    """A path up to its first block, with its number: `blocks.3`; empty outside of blocks."""
    found = re.match(f".*?{BLOCK}", path)
    return found[0] if found else ""


def both_blocks(place: str, other: str) -> str:
    """A place, with a star for the number of a block that is another in the other place."""
    own, theirs = re.split(BLOCK, place), re.split(BLOCK, other)
    for i in range(1, min(len(own), len(theirs)), 2):
        if own[: i + 1 : 2] == theirs[: i + 1 : 2]:  # the words before this number
            own[i] = own[i] if own[i] == theirs[i] else "*"
    return "".join(own)


def within(module: str, block: str) -> bool:
    """Whether a module is this one, or lies in it."""
    return module == block or block == "" or module.startswith(f"{block}.")


def code_of(site: str) -> str:
    """Whose code makes a value, in whichever block: of an output its module's, of an input what its caller does before
    that module. The model's own code does many things, of which each input that it makes is one. An argument is of the
    loop's code, whichever model it is given to."""
    module, _, port = site.partition(":")
    if module in MODELS and port.startswith("in."):
        module, site = "", f":{port}"
    if module in AROUND:
        return place_of(site)
    own = module
    if port.startswith("in."):
        own = f"{module}'s input" if caller_of(module) else f"{module}'s {port.split('.')[1]}"
    return any_block(own)


def place_of(site: str) -> str:
    """A site in the words of a list of differences."""
    module, _, port = site.partition("@")[0].partition(":")
    given, name = port.startswith("in."), port.removeprefix("in.")
    if module == SCHEDULE:
        return "the schedule"
    if module == LOOP:
        return _LOOP.get(port, port)
    if module == "decode":
        return "what is decoded" if given else "the frames"
    if module == "":
        return f"the argument {re.sub(_ITEM, '', name)}" if given else "the model's output"
    return f"{module}'s input" + f" {name}" * (name != "input") if given else module
