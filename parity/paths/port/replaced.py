"""What parity puts in the place of a model's own code, found on the loaded model: it is said with every result.

Parity's own sides realise settings so (attention processors, forwards that JAX can trace); a port runs as it is.
"""

from __future__ import annotations

import torch


def replacements(model: torch.nn.Module, safe_attention: bool) -> str:
    """What is parity's own in a loaded model, in words; empty for nothing.

    Args:
        safe_attention: whether torchax's attention is replaced by one in which rows without a key give 0.
    """
    found = ["torchax's attention (rows without a key give 0, not NaN)"] if safe_attention else []
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


def check(role: str, model: torch.nn.Module, safe_attention: bool) -> tuple[str, str, str]:
    """A preflight check (name, verdict, detail)."""
    said = replacements(model, safe_attention)
    return f"{role}: replaced by parity", "pass", said or "nothing: its code runs as it is"


def _is_ours(x: object) -> bool:
    return str(getattr(x, "__module__", "")).partition(".")[0] == "parity"


def _places(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"
