"""Kept runs that were damaged, or changed by somebody: shown, explained or refused; none decides what is executed."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.outcome import computed, damaged, ended, ends, slow
from tests.fuzz.test_goldens import ODD, Step, paths_of, put
from tests.support.tiny_dit import PORT, REFERENCE

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

SECONDS = 60
"""Of an explanation, which runs both sides again."""
MARKED = "\nimport pathlib\npathlib.Path(__file__).with_suffix('.executed').touch()\n"
DOCUMENTS = ("request.json", "result.json", "explain.json")


@dataclass(frozen=True)
class Kept:
    """A kept run, and the ports that it and an attacker's request name.

    Attributes:
        evil: a port that nobody has named on a command line; its digest is as a request has it.
    """

    run: Path
    reference: Path
    candidate: Path
    evil: Path

    @property
    def paths(self) -> list[str]:
        return ["--reference-path", f"{self.reference}:reference", "--candidate-path", f"{self.candidate}:build"]

    @property
    def executed(self) -> list[str]:
        return sorted(file.name for file in self.evil.parent.glob("*.executed"))

    def forget(self) -> None:
        for name in self.executed:
            (self.evil.parent / name).unlink()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A run of a port with a wrong norm, explained, so that every document is there."""
    folder = tmp_path_factory.mktemp("kept")
    made = Kept(folder / "run", folder / "model.py", folder / "port.py", folder / "evil.py")
    made.reference.write_text(REFERENCE + MARKED)
    made.candidate.write_text(PORT.replace("1e-5)", "1e-1)") + MARKED)
    made.evil.write_text(f"# Of somebody else\n{REFERENCE}{MARKED}")
    assert ended(["run", "--rounds", "structure", "--out", str(made.run), *made.paths], (1,), 600)[0] == 1
    assert ended(["explain", str(made.run), *made.paths], (1,), 600)[0] == 1
    assert sorted(made.run.glob("*.json")) == [made.run / name for name in sorted(DOCUMENTS)]
    made.forget()
    return made


def copied(kept: Kept, folder: Path) -> Path:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(kept.run, run)
    return run


def read(run: Path, folder: Path, kept: Kept) -> None:
    """Every command that takes a kept run: `explain` last, since it writes into it."""
    page = folder / "page.html"
    page.unlink(missing_ok=True)
    code = ends(["report", str(run), "--html", str(page)], among=(0, 2))
    assert page.exists() == (code == 0)
    assert not page.exists() or page.stat().st_size > 10_000
    computed(["diff", str(run / "reference"), str(run / "candidate")])
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    ended(["run", "--candidate", "nosuch=1", "--out", str(run), "--overwrite"], (2,))
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    computed(["explain", str(run), *kept.paths], seconds=SECONDS)


def changed(kept: Kept, folder: Path, name: str, path: tuple[Step, ...], value: Any) -> None:
    """Change one place of a document."""
    run = copied(kept, folder)
    document = put(json.loads((run / name).read_text()), path, value)
    (run / name).write_text(json.dumps(document))
    kept.forget()
    read(run, folder, kept)
    assert "evil.executed" not in kept.executed


@slow
@given(data=st.data(), name=st.sampled_from(DOCUMENTS))
def test_a_changed_document_is_shown_or_refused(kept: Kept, tmp_path: Path, data: st.DataObject, name: str) -> None:
    document = json.loads((kept.run / name).read_text())
    values = ODD | st.sampled_from([f"{kept.evil}:reference", str(kept.evil), "/dev/zero", str(kept.run)])
    changed(kept, tmp_path, name, data.draw(st.sampled_from(paths_of(document))), data.draw(values))


@slow
@given(data=st.data())
def test_damaged_bytes_of_a_run_are_named_or_do_no_harm(kept: Kept, tmp_path: Path, data: st.DataObject) -> None:
    run = copied(kept, tmp_path)
    file = data.draw(st.sampled_from(sorted(f for f in run.rglob("*") if f.is_file())))
    file.write_bytes(damaged(file.read_bytes(), data))
    kept.forget()
    read(run, tmp_path, kept)
    assert "evil.executed" not in kept.executed


@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_a_request_does_not_decide_what_is_executed(kept: Kept, tmp_path: Path, role: str) -> None:
    run = copied(kept, tmp_path)
    document = json.loads((run / "request.json").read_text())
    document[f"{role}_path"] = f"{kept.evil}:reference"
    document[f"{role}_code"] = hashlib.sha256(kept.evil.read_bytes()).hexdigest()[:16]
    (run / "request.json").write_text(json.dumps(document))
    kept.forget()
    ended(["explain", str(run)], (2,))
    ended(["report", str(run)], (0,))
    assert kept.executed == []
