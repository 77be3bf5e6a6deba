"""Witnesses are found, asked in order with what was found before, and only where what they need is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from parity.causes import witness as registry
from parity.causes.evidence import Evidence
from parity.causes.explain import ExplainRequest, explain
from parity.causes.gauges import measured
from parity.causes.witness import witness, witnesses
from parity.compare.reason import Note
from parity.compare.result import Cause, Result
from parity.paths.worker.openers import Workers
from tests.support.made import CANDIDATE, REFERENCE, walk, write


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    kept = {w.name: w for w in witnesses()}
    monkeypatch.setattr(registry, "_REGISTERED", kept)


def explained(folder: Path) -> Result:
    """Two goldens that differ, whose reference cannot be run again."""
    both = [walk(step, 1e4).steps() for step in range(2)]
    ours = write(folder / "reference", replace(REFERENCE, backend="torchax"), [a for a, _ in both])
    theirs = write(folder / "candidate", CANDIDATE, [b for _, b in both])
    return explain(ExplainRequest(ours, theirs), Workers(), lambda *told: None)


@pytest.mark.usefixtures("registered")
def test_one_that_is_registered_is_asked_with_what_the_others_found(tmp_path: Path) -> None:
    seen: list[Evidence] = []

    @witness("a_first")
    def first(asked: Evidence) -> Iterator[Cause | Note]:
        yield measured("the first", 1.0, "seen")
        yield Note("and a note")

    @witness("b_second")
    def second(asked: Evidence) -> Iterator[Cause]:
        seen.append(asked)
        return iter(())

    result = explained(tmp_path)
    assert [c.cause for c in result.causes] == ["the first"]
    assert result.notes[-1].text == "and a note"
    (asked,) = seen
    assert asked.causes == result.causes
    assert (asked.step, asked.ours.step, asked.theirs.step) == (1, 1, 1)


@pytest.mark.usefixtures("registered")
def test_what_needs_the_model_is_not_asked_without_it(tmp_path: Path) -> None:
    @witness("impossible", kind="signature", needs=("reference",))
    def impossible(asked: Evidence) -> Iterator[Cause]:
        raise AssertionError

    skipped = "counterfactuals and signatures are skipped: the reference golden was not recorded by a torch path"
    assert any(note.text.startswith(skipped) for note in explained(tmp_path).notes)

    @witness("from_records", kind="signature")
    def from_records(asked: Evidence) -> Iterator[Cause]:
        return iter(())

    assert any(n.text.startswith("counterfactuals are skipped: ") for n in explained(tmp_path / "again").notes)
