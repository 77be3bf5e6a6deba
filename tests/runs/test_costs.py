"""Time of a candidate relative to the base: what slows the machine down for a while does not move the ratio."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from parity.compare.prices import Price, PriceList, with_one_base
from parity.compare.result import Distance
from parity.golden.records import LOOP, Key, Record, StepRecords
from parity.paths.plan import MEMORY, SECONDS, Plan
from parity.report.formats import render
from parity.report.prices import CSV, Prices, to_csv
from parity.runs.sweep.costs import CALLS, step_costs
from parity.settings import DeepCache


class Clock:
    """A machine that is slow in the middle of the measurement; calls it was asked for, in order."""

    def __init__(self, slow: float = 10.0) -> None:
        self.calls: list[str] = []
        self._slow = slow

    @property
    def slow(self) -> float:
        return self._slow if len(self.calls) % 12 > 6 else 1.0


class Timed:
    """A side whose steps take `seconds` on that machine; from step 1 on `later`."""

    role, can = "candidate", None

    def __init__(self, name: str, clock: Clock, seconds: float, later: float | None = None) -> None:
        self.name, self.clock, self.seconds = name, clock, (seconds, seconds if later is None else later)

    def observe(self, plan: Plan, *, steps: tuple[int, int], start: None = None) -> Iterator[StepRecords]:
        assert plan.timed
        self.clock.calls.append(self.name)
        numbers = {SECONDS: self.seconds[min(steps[0], 1)] * self.clock.slow, MEMORY: 2**20}
        yield StepRecords(
            steps[0],
            [Record(Key("transformer", steps[0], "", f"{LOOP}:{n}"), "scalar", value=x) for n, x in numbers.items()],
        )


def test_the_ratio_holds_where_the_machine_does_not() -> None:
    clock = Clock()
    sides: Any = [(Timed("A", clock, 0.01), None), (Timed("B", clock, 0.02), None)]
    base, row = step_costs(sides, 4)
    assert clock.calls == ["A", "B"] * (len(clock.calls) // 2)
    assert CALLS < len(row.seconds) == len(clock.calls) // 2 - 1  # the first call of each compiles
    middle, (first, third) = row.over(base)
    assert middle == pytest.approx(2.0)
    assert first == pytest.approx(2.0)
    assert third <= 20.0 + 1e-9
    assert len(set(row.seconds)) > 1  # the machine did change
    assert row.memory == 2**20


def test_a_cache_s_step_is_the_mean_over_the_run() -> None:
    clock = Clock(slow=1.0)
    cached = Timed("B", clock, 0.04, later=0.01)
    sides: Any = [(Timed("A", clock, 0.04), None), (cached, DeepCache(1, 3, 2))]
    base, row = step_costs(sides, 4)
    assert row.over(base)[0] == pytest.approx((0.04 + 0.01) / 2 / 0.04)


ROWS = [
    Price(("a=1",), "pass", None, "", Distance(1e-3, 1e-6, 1e3), of_base=0.9, of_base_quartiles=(0.8, 1.0),
          seconds=0.108, base_seconds=0.120),
    Price(("b=1",), "pass", None, "one, two", Distance(1e-6, 1e-6, 1.0), of_base=1.1, of_base_quartiles=(1.0, 1.2),
          seconds=0.033, base_seconds=0.030),
    Price(("c=1",), "refused", reason="no"),
]  # fmt: skip


def test_times_and_ratios_say_the_same() -> None:
    """As measured, 108 ms stood at 0.9 of the base and 33 ms at 1.1: the base had moved."""
    rows = with_one_base(ROWS)
    assert [row.seconds for row in rows[:2]] == [pytest.approx(0.9 * 0.075), pytest.approx(1.1 * 0.075)]
    assert math.isnan(rows[2].seconds)


def made() -> PriceList:
    return PriceList("tiny", 2, 0, (), (), "cpu", "cpu", True, tuple(with_one_base(ROWS)))


def test_the_table_has_quartiles_and_the_rows_to_choose_among() -> None:
    text = render(Prices([made()]), "markdown")
    assert "67.5 ms (0.90x, 0.80-1.00)" in text
    assert "a=1, b=1 (they pass" in text
    beaten = replace(made(), rows=(*made().rows[1:], replace(made().rows[0], noise_pred=Distance(1e-9, 1e-6, 1e-3))))
    assert "they pass" not in render(Prices([beaten]), "markdown")


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([made(), made()]))))
    assert len(rows) == 6
    assert tuple(rows[0]) == CSV
    assert (rows[1]["settings"], rows[1]["reason"], float(rows[1]["of_base"])) == ("b=1", "one, two", 1.1)
    assert (rows[2]["verdict"], rows[2]["seconds"], rows[2]["memory"]) == ("refused", "", "")
