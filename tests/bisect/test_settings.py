"""Settings at fault are found among the innocent, with a judge that looks at the settings it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from parity.bisect.search import Found, search
from parity.bisect.settings import DifferingSettings, Judge
from parity.bisect.state import State
from parity.bisect.strategy import Outcome, strategy
from parity.bisect.swaps import Plan, Swap, plan
from parity.errors import UnjudgedError, UsageError
from parity.settings import Settings, parse, render

MANY = ["dtype=bfloat16", "attention.mask=none", "refiner.mask=none", "text.reorder=concatenate", "vision_states=none"]
MANY += ["rope=cached", "scheduler.warmup_steps=2", "jit=false", "sharding=tp_fc2_replicated"]


class Failing:
    """Fails where all of `faults` are in the candidate's settings; `refuses` raises for them instead."""

    def __init__(self, faults: dict[str, Any], refuses: Callable[[Settings], bool] = lambda _: False) -> None:
        self.faults, self.refuses, self.asked = faults, refuses, list[Settings]()

    def __call__(self, candidate: Settings) -> tuple[Outcome, str]:
        self.asked.append(candidate)
        if self.refuses(candidate):
            raise UnjudgedError("not reached")
        bad = all(candidate[name] == value for name, value in self.faults.items())
        return ("bad", "fail: apart") if bad else ("good", "pass")


def found_by(path: Path, searched: Plan, judge: Judge) -> Found[str]:
    with State.open(path, "settings", {}) as state:
        return search(DifferingSettings(searched, judge), strategy("ddmin_unless_none"), state)


def test_a_plan_takes_the_references_value_where_the_candidates_backend_can() -> None:
    reference = parse("torch", ["attention.kernel=sdpa", "vision_states=none", "rope=cached", "dtype=bfloat16"])
    candidate = parse("torchax", ["jit=false", "attention.mask=none", "rope=cached", "noise.device=device"])
    searched = plan(reference, candidate)
    assert searched.swaps == (
        Swap("dtype", "bfloat16", "float32"),
        Swap("attention.mask", "exact", "none"),
        Swap("vision_states", "none", "zeros"),
        Swap("noise.device", "cpu", "device"),
    )
    assert searched.with_only(tuple(s.setting for s in searched.swaps)) == candidate
    plain = searched.with_only(())
    assert [plain[s.setting] for s in searched.swaps] == ["bfloat16", "exact", "none", "cpu"]
    assert plain["jit"] is False  # differs in no way: what was given stays


def test_a_value_that_only_the_reference_can_have_is_stood_in_for() -> None:
    mine = parse("torchax", ["mesh=dp=1,sp=2,tp=1"])
    assert plan(parse("torch"), mine).swaps == (Swap("mesh", "dp=1,sp=1,tp=1", "dp=1,sp=2,tp=1"),)
    # flex is torch's alone: the candidate's default stands in.
    tpu = Settings("torchax", {**parse("torchax").values, "attention.kernel": "splash"})
    assert plan(parse("torch"), tpu).swaps == (Swap("attention.kernel", "sdpa", "splash"),)
    # Where that is what the candidate has anyway there is nothing to vary.
    odd = Settings("torch", {**parse("torch").values, "attention.softmax_dtype": "float64"})
    searched = plan(odd, parse("torchax", ["attention.mask=none"]))
    assert searched.kept == ("attention.softmax_dtype",)
    assert [s.setting for s in searched.swaps] == ["attention.mask"]
    with pytest.raises(UsageError, match="differ in no setting that could be varied"):
        plan(odd, parse("torchax"))


def test_a_fault_of_blocks_brings_the_kernel_that_has_them_and_their_size_goes_with_it() -> None:
    given = ["attention.kernel=splash", "attention.block_padding=unmasked", "attention.block_kv=256"]
    searched = plan(parse("torch"), parse("torchax", given))

    def tried(*names: str) -> list[str]:
        """What is given of these settings, which the path must take."""
        settings = searched.with_only(names)
        parse("torchax", [f"{name}={render(value)}" for name, value in settings.values.items()])
        return [text for text in given if render(settings[text.partition("=")[0]]) == text.partition("=")[2]]

    assert tried("attention.block_padding") == given[:2]
    assert tried("attention.kernel") == given[:1]
    assert tried("attention.block_kv") == []
    assert tried("attention.kernel", "attention.block_kv") == [given[0], given[2]]


@pytest.mark.parametrize("faults", [{"attention.mask": "none"}, {"scheduler.warmup_steps": 2}])
def test_one_setting_among_eight(tmp_path: Path, faults: dict[str, Any]) -> None:
    searched = plan(parse("torch", ["dtype=float16"]), parse("torchax", MANY))
    judge = Failing(faults)
    found = found_by(tmp_path / "s", searched, judge)
    assert list(found.answer) == list(faults)
    assert len(searched.swaps) == 8  # jit is off on both sides
    assert len(judge.asked) <= 2 + 2 * 3
    assert len(found.probes) == len(judge.asked)


def test_where_the_run_fails_without_any_no_setting_is_at_fault(tmp_path: Path) -> None:
    judge = Failing({"jit": False})
    found = found_by(tmp_path / "s", plan(parse("torch"), parse("torchax", MANY)), judge)
    assert (found.answer, len(judge.asked)) == ((), 2)


def test_two_that_act_together_and_combinations_that_cannot_run(tmp_path: Path) -> None:
    searched = plan(parse("torch"), parse("torchax", MANY))
    faults = {"attention.mask": "none", "rope": "cached"}
    judge = Failing(faults, lambda s: s["vision_states"] == "none" and s["refiner.mask"] == "exact")
    found = found_by(tmp_path / "s", searched, judge)
    assert list(found.answer) == list(faults)
    assert {p.evidence for p in found.probes if p.outcome == "unresolved"} == {"not reached"}


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    searched = plan(parse("torch"), parse("torchax", MANY))
    whole = Failing({"attention.mask": "none", "vision_states": "none"})
    answer = found_by(tmp_path / "whole", searched, whole)
    stopped = Failing(whole.faults)
    for done in range(len(whole.asked)):

        def until(candidate: Settings, done: int = done) -> tuple[Outcome, str]:
            if len(stopped.asked) == done:
                raise KeyboardInterrupt
            return stopped(candidate)

        with pytest.raises(KeyboardInterrupt):
            found_by(tmp_path / "s", searched, until)
    assert found_by(tmp_path / "s", searched, stopped).answer == answer.answer
    assert stopped.asked == whole.asked


def test_a_run_that_does_not_fail_or_cannot_be_run_has_nothing_to_found_by(tmp_path: Path) -> None:
    searched = plan(parse("torch"), parse("torchax", MANY))
    with pytest.raises(UsageError, match="the run does not fail: pass"):
        found_by(tmp_path / "s", searched, Failing({"dtype": "float16"}))
    with pytest.raises(UnjudgedError, match="not reached"):
        found_by(tmp_path / "t", searched, Failing({}, lambda _: True))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchax")
    judge = Failing({"attention.mask": "none"})
    monkeypatch.setattr("parity.bisect.settings.by_run", lambda request, say: judge)
    monkeypatch.setattr("parity.commands.bisect.quieten", lambda: None)

    def call(*arguments: str) -> tuple[int, str, str]:
        words = ["--candidate", "attention.mask=none", "--candidate", "vision_states=none", "--state", f"{tmp_path}/s"]
        monkeypatch.setattr("sys.argv", ["parity", "bisect", "settings", *words, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, captured.out, captured.err

    code, out, err = call()
    assert code == 0
    assert out.splitlines() == [
        "good: none of the settings",
        "bad: attention.mask, vision_states",
        "bad: attention.mask",
        "the run fails with attention.mask: exact -> none (3 probes of 2 settings)",
    ]
    assert "with attention.mask: bad (fail: apart); 1 setting left" in err.splitlines()
    code, out, _ = call("--json")
    document = json.loads(out)
    assert (code, len(judge.asked)) == (0, 3)  # nothing was run again
    assert document["culprits"] == [{"setting": "attention.mask", "without": "exact", "candidate": "none"}]
    assert document["bad"] == [["attention.mask", "vision_states"], ["attention.mask"]]
    assert call("--steps", "2")[0] == 2
    assert call("--steps", "0")[0] == 2
    assert call("--rounds", "three")[2].startswith("parity: --rounds takes both, structure, precision")
    assert call("--candidate", "rope=cached")[2].startswith(f"parity: {tmp_path}/s: this state file belongs to another")
    judge.faults = {"attention.mask": "zero_kv"}
    code, _, err = call("--restart")
    assert code == 2
    assert "the run does not fail: pass" in err
