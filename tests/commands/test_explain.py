"""`parity explain` on bad input: a reason and exit code 2 or 125, never a cause; witnesses that are skipped say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from parity import cli
from parity.commands.explain import _following
from parity.compare.result import NAN, Cause, Result, Witness
from parity.golden import Record, StepRecords
from tests.support.made import CANDIDATE, REFERENCE, because, pair, walk, write

FAR = 1e4
Explain = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Exit code, document and what is said on stderr."""

    def run(*arguments: object) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setattr("sys.argv", ["parity", "explain", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out = capsys.readouterr()
        return int(ended.value.code or 0), json.loads(out.out) if out.out else {}, out.err

    return run


def test_what_is_no_golden_or_no_run_is_a_usage_error(explain: Explain, tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path / "goldens", fault=FAR)
    empty, foreign, cut = (tmp_path / name for name in ("empty", "foreign", "cut"))
    for folder in (empty, foreign):
        folder.mkdir()
    (foreign / "golden.json").write_text('{"this": "is something else"}')
    shutil.copytree(candidate, cut)
    part = next(cut.glob("step-*.safetensors"))
    part.write_bytes(part.read_bytes()[:100])
    for wrong in (tmp_path / "nowhere", empty, foreign, cut):
        for arguments in ((wrong, candidate), (reference, wrong)):
            code, document, said = explain(*arguments)
            assert (code, document) == (2, {}), (arguments, said)
            assert wrong.name in said
    for run in (tmp_path / "nowhere", empty, reference):
        code, document, said = explain(run)
        assert (code, document) == (2, {})
        assert "is no kept run: make one with `parity run --out DIR`" in said


def test_a_run_that_ended_in_preflight_holds_nothing_to_explain(explain: Explain, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text('{"stage1": null, "prompt": null}')
    (tmp_path / "result.json").write_text('{"differing_settings": []}')
    code, document, said = explain(tmp_path)
    assert (code, document) == (2, {})
    assert "it ended in preflight" in said


def test_what_cannot_be_judged_has_no_causes_and_says_why(explain: Explain, tmp_path: Path) -> None:
    reference, _ = pair(tmp_path / "goldens", fault=FAR)
    bare, other = pair(tmp_path / "bare", fault=FAR, floors=False)
    seed = write(tmp_path / "seed", replace(CANDIDATE, seed=8), [walk(s, FAR).steps()[1] for s in range(2)])
    model = write(
        tmp_path / "model", replace(CANDIDATE, model="another", weights={"w": "0" * 16}),
        [walk(s, FAR).steps()[1] for s in range(2)],
    )  # fmt: skip
    nothing = write(tmp_path / "nothing", CANDIDATE, [StepRecords(s, ()) for s in range(2)])
    for arguments, why in (
        ((bare, other), "no floors"),
        ((reference, seed), "seed: 7 against 8"),
        ((reference, model), "not comparable: model"),
        ((reference, nothing), "no tensor in common"),
    ):
        code, document, _ = explain(*arguments)
        assert (code, document["verdict"], document["causes"]) == (125, "unjudged", []), arguments
        assert why in document["reason"]
        assert "the comparison could not be judged, so there is nothing to explain" in document["notes"]


def test_equal_goldens_have_nothing_to_explain(explain: Explain, tmp_path: Path) -> None:
    code, document, _ = explain(*pair(tmp_path))
    assert (code, document["causes"]) == (0, [])
    assert "there is nothing to explain" in document["notes"]


def test_a_model_that_is_not_here_leaves_the_gauges(explain: Explain, tmp_path: Path) -> None:
    """Signatures need the model; what the records show by themselves does not."""
    reference = [walk(0).steps()[0]]
    scaled = tuple(_scaled(r, 1.5) if r.key.site == "blocks.1:out" else r for r in reference[0].records)
    ours = write(tmp_path / "reference", REFERENCE, reference)
    theirs = write(tmp_path / "candidate", CANDIDATE, [StepRecords(0, scaled)])
    code, document, _ = explain(ours, theirs)
    assert code == 1
    (cause,) = document["causes"]
    assert "times 1.5" in cause["cause"]
    (skipped,) = [n for n in document["notes"] if "skipped" in n]
    assert skipped.startswith("counterfactuals and signatures are skipped: unknown model 'tiny'")


def _scaled(record: Record, by: float) -> Record:
    m = record.moments
    assert record.sketch is not None
    assert m is not None
    moments = replace(m, min=by * m.min, max=by * m.max, mean=by * m.mean, l2=by * m.l2)
    return replace(record, sketch=(record.sketch * by).astype(np.float32), moments=moments)


def test_records_without_sketches_leave_the_verdict_and_no_cause(explain: Explain, tmp_path: Path) -> None:
    ours = write(tmp_path / "reference", REFERENCE, [walk(1, FAR).steps()[0]])
    theirs = write(
        tmp_path / "candidate", CANDIDATE,
        [StepRecords(1, tuple(replace(r, sketch=None, value=None) for r in walk(1, FAR).steps()[1].records))],
    )  # fmt: skip
    code, document, _ = explain(ours, theirs)
    assert code in (1, 125)
    assert document["causes"] == []
    assert document["notes"]


@pytest.mark.parametrize(
    ("second", "again", "page"),
    [
        (None, "the same run with --candidate attention.mask=exact", "parity report 'my run'"),
        (
            "b",
            "record the candidate again with --setting attention.mask=exact",
            "parity explain 'my run' b --format html > explain.html",
        ),
    ],
)
def test_what_to_type_once_the_causes_are_known(second: str | None, again: str, page: str) -> None:
    swapped = Cause("mask", "attention.mask", "exact", "none", 1.0, (Witness("counterfactual", 1.0, ""),))
    counted = Cause("64 phantom keys", "", "", "", NAN, (Witness("gauge", 64.0, ""),))
    for causes, commands in (((), ()), ((counted,), (page,)), ((swapped, counted), (again, page))):
        found = _following(Result("fail", "structure", because("differs"), causes=causes), "my run", second)
        assert tuple(command.partition("   #")[0] for command in found) == commands
