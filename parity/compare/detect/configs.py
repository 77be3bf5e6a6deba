"""Config values that differ in the component in which a divergence starts.

A config says what a component was built with, a default that a missing field stands for among it. Which of them makes
the difference is not measured: the values are said where the divergence starts inside that component, with its own
inputs alike, and nothing else names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parity.compare.result import Cause, Origin, SettingDifference, measured
from parity.records import LOOP

COMPONENTS = {"transformer": ("transformer.", "transformer_2.", "unet."), "vae": ("vae.",), "schedule": ("scheduler.",)}
MOST = 4
"""Fields that are listed at most; with more the two are other models."""


def config_cause(differing: Iterable[SettingDifference], origin: Origin | None) -> Iterator[Cause]:
    """One cause where configs differ in the component of the first divergence."""
    component = "" if origin is None else _component(origin)
    fields = [d for d in differing if component and d.setting.startswith(COMPONENTS[component])]
    if not fields or len(fields) > MOST:
        return
    shown = "; ".join(f"{d.setting} is {d.candidate or 'missing'}, not {d.reference or 'missing'}" for d in fields)
    plural = "values differ" if len(fields) > 1 else "value differs"
    text = f"the divergence starts in a component whose config {plural}: {shown}"
    first = fields[0]
    yield measured(text, first.setting, first.reference, first.candidate, float(len(fields)))


def _component(origin: Origin) -> str:
    """The component in which a divergence starts; empty for the loop's own values and what is given to it."""
    key = origin.key
    if key.module == "schedule":
        return "schedule"
    if key.stage == "vae" and key.site == "decode:out":
        return "vae"
    inside = key.stage == "transformer" and key.module not in ("", LOOP)
    return "transformer" if inside else ""
