"""What is left of a run is what the last one like it took; without one nothing is claimed."""

from __future__ import annotations

import io
import json
import math
import re
from functools import partial
from pathlib import Path
from threading import RLock

import pytest
from rich.console import Console
from rich.progress import Task, TaskID
from rich.text import Text

from parity.report import progress as showing
from parity.report.progress import progress
from parity.report.timing import Timing, clock


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    return tmp_path / "timings"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run(command: str, *stages: tuple[str, float]) -> Timing:
    now = Clock()
    timing = Timing(command, now)
    for name, seconds in stages:
        timing.begin(name)
        now.now += seconds
    timing.finish()
    return timing


def test_a_first_run_claims_nothing() -> None:
    timing = run("first", ("load", 3.0))
    assert (timing.place, math.isnan(timing.left), timing.total) == ("", True, 3.0)


def test_the_next_run_knows_its_place_and_what_is_left() -> None:
    run("again", ("load", 10.0), ("reference", 5.0), ("candidate", 15.0), ("reference", 5.0), ("candidate", 5.0))
    now = Clock()
    timing = Timing("again", now)
    timing.begin("load")
    assert (timing.place, timing.left) == ("1 of 3", 40.0)
    now.now = 12.0  # longer than the last time: what follows is not shorter for it
    assert timing.left == 30.0
    timing.begin("reference")
    now.now += 4.0
    timing.begin("candidate")
    assert (timing.place, timing.left) == ("3 of 3", 26.0)  # 20 of the candidate, 6 of the reference's next step
    timing.begin("reference")
    assert timing.place == "3 of 3"  # the loop turns from one side to the other; the count does not go back
    assert math.isnan(Timing("another").left)


def test_a_stage_that_no_run_had_leaves_the_place() -> None:
    run("known", ("load", 1.0), ("judge", 1.0))
    timing = Timing("known", Clock())
    timing.begin("load")
    timing.begin("looking closer")
    assert (timing.place, timing.left) == ("1 of 2", 2.0)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"stages": 1}', '{"stages": [["a", "x", 1]]}', '{"stages": [["a", -1, 1]]}']
)
def test_a_damaged_file_is_no_plan(cache: Path, content: str) -> None:
    run("damaged", ("load", 1.0))
    (file,) = cache.iterdir()
    file.write_text(content)
    assert not Timing("damaged").earlier


def test_a_run_that_fails_is_not_remembered(cache: Path) -> None:
    def fails() -> None:
        with progress(Console(file=io.StringIO()), command="fails") as say:
            say("load")
            raise ValueError("ends")

    with pytest.raises(ValueError, match="ends"):
        fails()
    assert not cache.exists()


def test_a_log_has_place_time_and_total(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "WORTH_SAYING", 0.0)
    run("log", ("load", 60.0), ("candidate (tracing and compiling)", 30.0))
    with progress(Console(file=io.StringIO()), command="log") as say:
        say("load")
        say("candidate (tracing and compiling)", 0, 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "1 of 2  load  0:00, about 1:30 left",
        "2 of 2  candidate (tracing and compiling)  0:00, about 0:30 left",
        "finished in 0:00",
    ]


def test_what_is_kept_holds_no_option_s_value(cache: Path) -> None:
    run("run --prompt secret", ("load", 1.0))
    (file,) = cache.iterdir()
    assert json.loads(file.read_text()) == {"format": 1, "stages": [["load", 1.0, 1]]}
    assert "secret" not in file.name


def test_clock() -> None:
    assert [clock(s) for s in (0.4, 7, 750, 3723)] == ["0:00", "0:07", "12:30", "1:02:03"]


@pytest.mark.parametrize("width", [60, 120])
def test_a_stage_longer_than_the_terminal_leaves_the_time_on_its_line(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = "both sides again, with the values of " + "transformer_blocks.0.attn.attention " * 4
    run("long", (stage, 60.0))
    monkeypatch.setattr(showing, "Timing", partial(Timing, clock=Clock()))  # a busy machine's seconds move the bar
    file = io.StringIO()
    with progress(Console(file=file, force_terminal=True, width=width), command="long") as say:
        say(stage)
    drawn = [Text.from_ansi(line).plain for line in re.split(r"[\r\n]+", file.getvalue())]
    shown = [line for line in drawn if "1 of 1" in line]
    assert shown
    assert all(re.search(r"1 of 1  b[^…]*… ━+ +\d:\d\d, about \d:\d\d left\s*$", line) for line in shown)


def test_the_bar_is_how_far_the_whole_is() -> None:
    run("half", ("load", 30.0), ("compare", 30.0))
    now = Clock()
    timing = Timing("half", now)
    timing.begin("load")
    now.now = 30.0
    timing.begin("compare")
    bar = showing._Whole(timing).render(Task(TaskID(0), "compare", None, 0, lambda: 0.0, _lock=RLock()))
    assert (bar.pulse, bar.percentage_completed) == (False, 50.0)
