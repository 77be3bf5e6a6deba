"""Kept runs that were damaged, or changed by somebody: shown, explained or refused; none decides what is executed."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.fuzz.outcome import computed, damaged, ends, slow
from tests.fuzz.test_goldens import ODD, Step, paths_of, put
from tests.support.cli import cli
from tests.support.tiny_dit import PORT, REFERENCE

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

MARKED = "\nimport pathlib\npathlib.Path(__file__).with_suffix('.executed').touch()\n"
DOCUMENTS = ("request.json", "result.json", "found.json", "explain.json")


@dataclass(frozen=True)
class Kept:
    """A folder with a kept run, its ports, and `evil.py`: a port that nobody has named on a command line."""

    folder: Path

    @property
    def paths(self) -> list[str]:
        """Both ports, named on a command line."""
        here = self.folder
        return ["--reference-port", f"{here / 'model.py'}:reference", "--port", f"{here / 'port.py'}:build"]

    @property
    def executed(self) -> list[str]:
        return sorted(file.name for file in self.folder.glob("*.executed"))

    def copied(self, to: Path) -> Path:
        """A copy of the run; what was executed so far is forgotten."""
        for name in self.executed:
            (self.folder / name).unlink()
        shutil.rmtree(to / "run", ignore_errors=True)
        return Path(shutil.copytree(self.folder / "run", to / "run"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A run of a port with a wrong norm, explained, so that every document is there."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "model.py").write_text(REFERENCE + MARKED)
    (folder / "port.py").write_text(PORT.replace("1e-5)", "1e-1)") + MARKED)
    (folder / "evil.py").write_text(f"# Of somebody else\n{REFERENCE}{MARKED}")
    kept = Kept(folder)
    cli("run", "--checks", "logic", "--out", folder / "run", *kept.paths, code=1)
    cli("explain", folder / "run", *kept.paths, code=1)
    return kept


def read(run: Path, folder: Path, kept: Kept) -> None:
    """Every command that takes a kept run: `explain` last, since it writes into it."""
    page = folder / "page.html"
    page.unlink(missing_ok=True)
    ran = ends("report", run, "--html", page, among=(0, 2))
    assert page.exists() == (ran.code == 0)
    computed("diff", run / "reference", run / "candidate")
    computed("explain", run, *kept.paths, seconds=60)


@slow
@given(data=st.data(), name=st.sampled_from(DOCUMENTS))
def test_a_changed_document_is_shown_or_refused(kept: Kept, tmp_path: Path, data: st.DataObject, name: str) -> None:
    run = kept.copied(tmp_path)
    document = json.loads((run / name).read_text())
    evil = kept.folder / "evil.py"
    values = ODD | st.sampled_from([f"{evil}:reference", str(evil), "/dev/zero", str(kept.folder)])
    path: tuple[Step, ...] = data.draw(st.sampled_from(paths_of(document)))
    changed: Any = put(document, path, data.draw(values))
    (run / name).write_text(json.dumps(changed))
    read(run, tmp_path, kept)
    assert "evil.executed" not in kept.executed


@slow
@given(data=st.data())
def test_damaged_bytes_of_a_run_are_named_or_do_no_harm(kept: Kept, tmp_path: Path, data: st.DataObject) -> None:
    run = kept.copied(tmp_path)
    file = data.draw(st.sampled_from(sorted(f for f in run.rglob("*") if f.is_file())))
    file.write_bytes(damaged(file.read_bytes(), data))
    read(run, tmp_path, kept)
    assert "evil.executed" not in kept.executed


@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_a_request_does_not_decide_what_is_executed(kept: Kept, tmp_path: Path, role: str) -> None:
    run, evil = kept.copied(tmp_path), kept.folder / "evil.py"
    document = json.loads((run / "request.json").read_text())
    name = {"reference": "reference_port", "candidate": "port"}[role]
    document[name] = f"{evil}:reference"
    document[f"{name.removesuffix('_port')}_code"] = hashlib.sha256(evil.read_bytes()).hexdigest()[:16]
    (run / "request.json").write_text(json.dumps(document))
    ends("explain", run, among=(2,))
    ends("report", run, among=(0,))
    assert kept.executed == []
