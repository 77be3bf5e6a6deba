"""The rules that others use, on the same tensors: every module's output, or what a script makes.

The effect of a change is measured in float64, where nothing rounds; what rounds is the distance of the fixed version in
float32 from itself in float64. A fault counts where its effect on the result is above that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from change import Change

RULES: Mapping[str, Callable[[torch.Tensor, torch.Tensor, float], bool]] = {
    "max_diff 1e-3": lambda a, b, noise: bool((a - b).abs().max() <= 1e-3),
    "1.5 x noise": lambda a, b, noise: float((a - b).norm()) <= 1.5 * noise,
}
"""Name -> whether two outputs pass; `noise` is how far the reference in float32 is from itself in float64."""


def effect(change: Change) -> dict[str, Any]:
    """The effect of a change on its result and on any output, the rounding beside it, and who raises an alarm."""
    exact, other, single, wrong = (
        tensors(change, fixed, dtype) for dtype in (torch.float64, torch.float32) for fixed in (True, False)
    )
    alarms = dict.fromkeys(RULES, False)
    for name, a in single.items():
        b, truth = wrong.get(name), exact.get(name)
        if b is None or truth is None or a.shape != b.shape or not torch.isfinite(a).all():
            continue
        noise = float((a - truth).norm())
        for rule, passes in RULES.items():
            alarms[rule] |= not passes(a, b, noise)
    last = list(exact)[-1]
    apart = _apart(exact[last], other.get(last))
    most = max(_apart(x, other.get(name)) for name, x in exact.items() if name in other)
    rounding = _apart(exact[last], single[last])
    return {"effect": apart, "anywhere": most, "rounding": rounding, "above": apart > rounding, "rivals": alarms}


def _apart(a: torch.Tensor, b: torch.Tensor | None) -> float:
    if b is None or a.shape != b.shape:
        return float("inf")
    size = float(a.norm())
    return float((a - b).norm()) / size if size else float((b - a).norm())


def tensors(change: Change, fixed: bool, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Outputs by name in float64, the result last."""
    if change.script is not None:
        return {name: x.double() for name, x in change.script(fixed, dtype).go().items()}
    assert change.model is not None
    made, found = change.model(fixed), dict[str, torch.Tensor]()

    def seen(name: str, out: Any) -> None:
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if isinstance(first, torch.Tensor) and first.is_floating_point() and name not in found:
            found[name] = first.detach().double()

    for name, part in made.module.to(dtype).named_modules():
        if name:
            part.register_forward_hook(lambda module, args, out, name=name: seen(name, out))
    inputs = {name: x.to(dtype) if x.is_floating_point() else x for name, x in made.inputs.items()}
    with torch.no_grad():
        out = made.module(**inputs, **made.static)
    found["result"] = (out if isinstance(out, torch.Tensor) else out[0]).double()
    return found
