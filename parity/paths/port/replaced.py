"""What parity puts in the place of a model's own code, found on the loaded model, and listed with every result.

Parity's own sides realise settings so (attention processors, forwards that JAX can trace); a port runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parity.paths.loaded import Loaded
from parity.settings.chips import NO_CHIP, chip_of


def replacements(model: torch.nn.Module, safe_attention: bool) -> str:
    """What is parity's own in a loaded model, in words; empty for nothing.

    Args:
        safe_attention: whether torchax's attention is replaced by one in which rows without a key give 0, and what
            `parity.paths.jax.mended` mends.
    """
    mended = "torchax's attention (rows without a key give 0, not NaN) and `type_as` (a cast, not in place)"
    found = [mended] if safe_attention else []
    processors, forwards = [], []
    for path, module in model.named_modules():
        if _is_ours(type(getattr(module, "processor", None))):
            processors.append(path)
        if "forward" in vars(module) and _is_ours(vars(module)["forward"]):
            forwards.append(path or "the transformer")
    if processors:
        found.append(f"attention processors of {_places(processors)}")
    if forwards:
        found.append(f"forward of {_places(forwards)}")
    return "; ".join(found)


def checks(side: Loaded) -> tuple[tuple[str, str, str], ...]:
    """Preflight checks (name, verdict, detail): what is parity's own in a side, and what is its chip's."""
    said = replacements(side.backend.module(), side.backend.safe_attention)
    own = (f"{side.role}: replaced by parity", "pass", said or "nothing: its code runs as it is")
    if side.role == "reference":
        return (own,)
    return (own, *of_the_chip(side.backend.describe(), side.settings.text("tpu")))


def of_the_chip(devices: Sequence[str], chip: str) -> tuple[tuple[str, str, str], ...]:
    """What a candidate's elementary functions are, where that is of any account: a preflight check, or none.

    Args:
        devices: as `Backend.describe` says. chip: the setting `tpu`.
    """
    here = chip_of(devices[0])
    if chip == here == NO_CHIP:
        return ()
    name = "candidate: elementary functions"
    if here == chip:
        return ((name, "pass", f"those of the TPU {here}, which the floors allow for"),)
    if chip == NO_CHIP:
        said = f"those of the TPU {here}, which no floor allows for: --candidate tpu={here} makes some that do"
        return ((name, "explained", said),)
    said = (
        f"in float32 each errs at random within XLA's bounds for a TPU {chip}, and the floors allow for it; the order "
        "of sums, the passes of a product and what fusions keep in float32 are this machine's"
    )
    return ((name, "explained", said),)


def _is_ours(x: object) -> bool:
    return str(getattr(x, "__module__", "")).partition(".")[0] == "parity"


def _places(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"
