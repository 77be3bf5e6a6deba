"""Settings at fault are found among the innocent, with a judge that looks at the settings it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from parity import cli
from parity.bisect.settings import Judge, Outcome, Plan, Swap, fewest, plan
from parity.errors import InconclusiveError, UsageError
from parity.settings import Settings, parse, render

MANY = ["dtype=bfloat16", "attention.mask=none", "refiner.mask=none", "text.reorder=concatenate", "vision_states=none"]
MANY += ["rope=cached", "scheduler.warmup_steps=2", "jit=false", "attention.k_smooth=true"]


class Failing:
    """Fails where all of `faults` are in the candidate's settings; `refuses` raises for them instead."""

    def __init__(self, faults: dict[str, Any], refuses: Callable[[Settings], bool] = lambda _: False) -> None:
        self.faults, self.refuses, self.asked = faults, refuses, list[Settings]()

    def __call__(self, candidate: Settings) -> tuple[Outcome, str]:
        self.asked.append(candidate)
        if self.refuses(candidate):
            raise InconclusiveError("not reached")
        bad = all(candidate[name] == value for name, value in self.faults.items())
        return ("bad", "fail: apart") if bad else ("good", "pass")


def search(judge: Judge, searched: Plan) -> list[str]:
    return [swap.setting for swap in fewest(searched, judge)[0]]


def eight() -> Plan:
    """Of `MANY`, those that differ: jit is off on both sides."""
    searched = plan(parse("torch", ["dtype=float16"]), parse("torchax", MANY))
    assert len(searched.swaps) == 8
    return searched


def test_a_plan_takes_the_references_value_where_the_candidates_backend_can() -> None:
    reference = parse("torch", ["attention.kernel=sdpa", "vision_states=none", "rope=cached", "dtype=bfloat16"])
    candidate = parse("torchax", ["jit=false", "attention.mask=none", "rope=cached", "refiner.mask=none"])
    searched = plan(reference, candidate)
    assert searched.swaps == (
        Swap("dtype", "bfloat16", "float32"),
        Swap("attention.mask", "exact", "none"),
        Swap("refiner.mask", "exact", "none"),
        Swap("vision_states", "none", "zeros"),
    )
    assert searched.with_only(tuple(s.setting for s in searched.swaps)) == candidate
    plain = searched.with_only(())
    assert [plain[s.setting] for s in searched.swaps] == ["bfloat16", "exact", "exact", "none"]
    assert plain["jit"] is False  # differs in no way: what was given stays


def test_a_value_that_only_the_reference_can_have_is_stood_in_for() -> None:
    mine = parse("torchax", ["mesh=dp=1,sp=2,tp=1"])
    assert plan(parse("torch"), mine).swaps == (Swap("mesh", "dp=1,sp=1,tp=1", "dp=1,sp=2,tp=1"),)
    # flex is torch's alone: the candidate's default stands in.
    tpu = parse("torchax").with_({"attention.kernel": "splash"})
    assert plan(parse("torch"), tpu).swaps == (Swap("attention.kernel", "sdpa", "splash"),)
    # Where that is what the candidate has anyway there is nothing to vary.
    # The device says whose program runs: it is no fault, and stays.
    beside = plan(parse("torch"), parse("torchax", ["device=cpu", "attention.mask=zero_kv"]))
    assert "device" in beside.kept
    assert beside.with_only(("attention.mask",))["device"] == "cpu"
    odd = parse("torch").with_({"attention.softmax_dtype": "float64"})
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


@pytest.mark.parametrize(
    ("faults", "refuses", "probes"),
    [
        ({"attention.mask": "none"}, False, 8),
        ({"scheduler.warmup_steps": 2}, False, 8),
        ({"attention.mask": "none", "rope": "cached"}, False, 40),
        ({"attention.mask": "none", "rope": "cached"}, True, 40),  # some combinations cannot be run
        ({}, False, 2),  # the run fails without any of them
    ],
)
def test_culprits_among_eight(faults: dict[str, Any], refuses: bool, probes: int) -> None:
    judge = Failing(faults, lambda s: refuses and s["vision_states"] == "none" and s["refiner.mask"] == "exact")
    assert search(judge, eight()) == list(faults)
    assert len(judge.asked) <= probes


def test_what_is_varied_in_a_stage() -> None:
    differing = parse("torchax", ["attention.mask=none", "vae.tiling=true", "dtype=bfloat16"])
    for stages, names in (
        (None, ["dtype", "attention.mask", "vae.tiling"]),
        (["vae"], ["dtype", "vae.tiling"]),
        (["text", "transformer"], ["dtype", "attention.mask"]),
    ):
        assert [s.setting for s in plan(parse("torch"), differing, stages=stages).swaps] == names
    with pytest.raises(UsageError, match="differ in no setting"):
        plan(parse("torch"), parse("torchax", ["attention.mask=none"]), stages=["vae"])


def test_a_run_that_does_not_fail_or_cannot_be_run_has_nothing_to_find() -> None:
    with pytest.raises(UsageError, match="the run does not fail: pass"):
        search(Failing({"dtype": "float16"}), eight())
    with pytest.raises(InconclusiveError, match="not reached"):
        search(Failing({}, lambda _: True), eight())


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchax")
    judge = Failing({"attention.mask": "none"})
    monkeypatch.setattr("parity.bisect.settings.by_run", lambda request, say: judge)
    monkeypatch.setattr("parity.commands.bisect.quieten", lambda: None)

    def call(*arguments: str) -> tuple[int, str, str]:
        words = ["--candidate", "attention.mask=none", "--candidate", "vision_states=none"]
        monkeypatch.setattr("sys.argv", ["parity", "bisect", "--settings", *words, *arguments])
        code = cli.main()
        return code, *capsys.readouterr()

    code, out, err = call()
    assert code == 0
    assert out.splitlines() == [
        "good: none of the settings",
        "bad: attention.mask, vision_states",
        "bad: attention.mask",
        "the run fails with attention.mask: exact -> none",
    ]
    assert "with attention.mask: bad (fail: apart)" in err.splitlines()
    code, out, _ = call("--format", "json")
    document = json.loads(out)
    assert (code, len(judge.asked)) == (0, 6)
    assert document["culprits"] == [{"setting": "attention.mask", "without": "exact", "candidate": "none"}]
    assert [probe["outcome"] for probe in document["probes"]] == ["bad", "good", "bad"]
    for wrong, why in (
        (["HEAD"], "--settings searches the settings of a run: it takes no commits"),
        (["--steps", "0"], "--steps"),
        (["--checks", "three"], "'three' is not one of 'both', 'logic', 'precision'"),
        (["--inputs", "nowhere"], "no such file or golden"),
    ):
        code, out, err = call(*wrong)
        assert (code, out, why in err) == (2, "", True), err
