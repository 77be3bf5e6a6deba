"""`parity explain` on what cannot be explained: exit code 2 or 125 and a reason, never a cause."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchax")

from parity.causes.request import ExplainRequest
from parity.compare.reason import Reason
from parity.compare.result import Result, measured, result_text
from parity.records import Floor, Key, StepRecords
from tests.runs.test_spec import PLAIN
from tests.support.cli import Ran, cli
from tests.support.made import CANDIDATE, REFERENCE, pair, scaled, tensor_record, walk, write

FAR = 1e4


def explain(*arguments: object, code: int) -> Ran:
    return cli("explain", *arguments, "--format", "json", code=code)


def test_what_is_no_golden_or_no_run_is_bad_input(tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path / "goldens", fault=FAR)
    (tmp_path / "empty").mkdir()
    shutil.copytree(candidate, tmp_path / "cut")
    part = next((tmp_path / "cut").glob("step-*.safetensors"))
    part.write_bytes(part.read_bytes()[:100])
    for wrong in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "cut"):
        for arguments in ((wrong, candidate), (reference, wrong)):
            assert wrong.name in explain(*arguments, code=2).said
    for run in (tmp_path / "empty", reference):
        assert "is not a run folder. Create one with `parity run --out DIR`" in explain(run, code=2).said
    (tmp_path / "empty" / "request.json").write_text(PLAIN.to_json())
    assert "holds a run that did not end: delete it, and run it again" in explain(tmp_path / "empty", code=2).said
    for name in ("result.json", "found.json"):
        (tmp_path / "empty" / name).write_text("[]")
    assert "holds a run whose documents are damaged" in explain(tmp_path / "empty", code=2).said


def test_goldens_may_be_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find_causes(request: ExplainRequest, *_: object) -> Result:
        asked.extend([request.reference, request.candidate])
        return Result("pass", None, Reason(kind="agrees"))

    monkeypatch.setattr("parity.causes.explain.explain", find_causes)
    explain("gs://bucket/a", "gs://bucket/b", code=0)
    assert asked == ["gs://bucket/a", "gs://bucket/b"]


def test_a_run_that_ended_in_preflight_keeps_its_causes(tmp_path: Path) -> None:
    cause = measured("warm-up calls moved the scheduler", "scheduler.warmup_steps", "0", "1", fix="reset the scheduler")
    why = Reason(kind="preflight", check="scheduler state", detail="it stands at step 1")
    (tmp_path / "request.json").write_text(PLAIN.to_json())
    (tmp_path / "found.json").write_text(result_text(Result("fail", "preflight", why, causes=(cause,))))
    found = explain(tmp_path, code=1).json
    assert [c["fix"] for c in found["causes"]] == ["reset the scheduler"]
    assert "preflight has seen what differs" in found["notes"][0]


def test_what_cannot_be_judged_has_no_causes_and_says_why(tmp_path: Path) -> None:
    reference, _ = pair(tmp_path / "goldens", fault=FAR)
    steps = [walk(step, FAR).steps()[1] for step in range(2)]
    seed = write(tmp_path / "seed", replace(CANDIDATE, seed=8), steps)
    nothing = write(tmp_path / "nothing", CANDIDATE, [StepRecords(step, ()) for step in range(2)])
    for sides, why in (
        (pair(tmp_path / "bare", fault=FAR, floors=False), "no floors"),
        ((reference, seed), "seed: 7 against 8"),
        ((reference, nothing), "no tensor in common"),
    ):
        found = explain(*sides, code=125).json
        assert (found["verdict"], found["causes"], why in found["reason"]) == ("inconclusive", [], True)
        assert "the comparison could not be judged, so there is nothing to explain" in found["notes"]
    assert "there is nothing to explain" in explain(*pair(tmp_path / "same"), code=0).json["notes"]


def test_a_model_that_is_not_here_leaves_what_the_records_show(tmp_path: Path) -> None:
    reference = walk(0).steps()[0]
    louder = tuple(scaled(r, 1.5) if r.key.site == "blocks.1:out" else r for r in reference.records)
    ours = write(tmp_path / "reference", REFERENCE, [reference])
    theirs = write(tmp_path / "candidate", CANDIDATE, [StepRecords(0, louder)])
    found = explain(ours, theirs, code=1).json
    assert ["times 1.5" in cause["cause"] for cause in found["causes"]] == [True]
    (skipped,) = [note for note in found["notes"] if "swap test" in note]
    assert skipped.startswith("no swap test and no fault match: unknown model 'tiny'")
    bare = tuple(replace(r, sketch=None, value=None) for r in walk(1, FAR).steps()[1].records)
    ours = write(tmp_path / "ours", REFERENCE, [walk(1, FAR).steps()[0]])
    theirs = write(tmp_path / "bare", CANDIDATE, [StepRecords(1, bare)])
    assert cli("explain", ours, theirs, "--format", "json").json["causes"] == []


def test_without_torch_the_verdict_of_a_stage_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key("text", -1, "", "text_encoder:out")
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    goldens = []
    for side, scale in ((REFERENCE, 1.0), (CANDIDATE, 1.5)):
        steps = [StepRecords(-1, (tensor_record(key, x * scale),), {key: Floor(1e-6)}), walk(0).steps()[0]]
        goldens.append(write(tmp_path / side.side, side, steps))

    def missing(name: str) -> None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", missing)
    found = explain(*goldens, code=1).json
    assert (found["verdict"], found["origin"]["stage"]) == ("fail", "text")
    assert any("this command needs torch" in note for note in found["notes"])
