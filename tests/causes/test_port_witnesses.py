"""Witnesses of a port: signatures lead where swapped settings explain nothing; a swap without effect shows none."""

from __future__ import annotations

from typing import Any

import numpy as np

from parity.bisect.swaps import Plan, Swap
from parity.causes.explain import _merged
from parity.causes.witnesses.counterfactuals import _obeyed
from parity.compare.result import Cause, Witness
from parity.errors import UsageError
from parity.golden import Key, StepRecords
from parity.golden.values import value_record
from parity.settings import Settings, parse


def cause(setting: str, value: str, share: float, kind: str) -> Cause:
    return Cause(f"{setting} is {value}", setting, "", value, share, (Witness(kind, share, ""),), 0.0)  # type: ignore[arg-type]


def named(causes: list[Cause]) -> list[tuple[str, float]]:
    return [(c.setting, c.share) for c in causes]


def test_signatures_lead_where_a_declared_setting_explains_nothing() -> None:
    """They were found and dropped once a port declared any differing setting."""
    harmless = cause("attention.k_smooth", "true", 0.0, "counterfactual")
    found = cause("attention.mask", "zero_kv", 0.99, "signature")
    assert named(_merged([harmless], [found])) == [("attention.mask", 0.99), ("attention.k_smooth", 0.0)]


class Machine:
    """A port whose noise_pred depends on its mask alone, and that refuses one value."""

    def again(self, settings: Settings, step: int) -> StepRecords:
        if settings.text("attention.softmax_dtype") == "float32":
            raise UsageError("port.py:3: ValueError: bfloat16 alone")
        x = np.full(3, 1.0 if settings.text("attention.mask") == "none" else 2.0, np.float32)
        return StepRecords(step, (value_record(Key("transformer", step, "", "loop:noise_pred"), x, "float32"),))

    candidate = again


def test_a_swap_that_is_not_obeyed_or_refused_costs_itself_alone() -> None:
    given = ["attention.mask=none", "attention.k_smooth=true", "attention.softmax_dtype=bfloat16"]
    swaps = (
        Swap("attention.mask", "exact", "none"),
        Swap("attention.k_smooth", "false", "true"),
        Swap("attention.softmax_dtype", "float32", "bfloat16"),
    )
    plan = Plan(candidate=parse("torchax", given), swaps=swaps, kept=())
    notes: list[str] = []
    machine: Any = Machine()
    left = _obeyed(machine, plan, 0, notes)
    assert [s.setting for s in left.swaps] == ["attention.mask"]
    assert notes == [
        "attention.k_smooth is not obeyed: the port computes the same to the bit with attention.k_smooth=false",
        "attention.softmax_dtype=float32 is not tried: the port refuses it: port.py:3: ValueError: bfloat16 alone",
    ]
    assert left.with_only(())["attention.k_smooth"] is True, "what is not tried stays the candidate's own"
