"""Every program in benchmarks/ can be started, and those that measure observing run in their smallest form."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")
FOLDER = Path(__file__).parents[1] / "benchmarks"
PROGRAMS = sorted(f.stem for f in FOLDER.glob("*.py") if "__main__" in f.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_says_what_it_takes(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{program}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(program).main()
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_observe_in_its_smallest_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    observe = importlib.import_module("observe")
    asked = "--blocks 1 --frames 1 --repeats 1 --sites blocks"
    monkeypatch.setattr(sys, "argv", ["observe.py", *asked.split()])
    observe.main()
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:]]
    assert rows == [[side, sites] for side in ("torch", "torchax") for sites in ("unobserved",) * 2 + ("blocks",) * 2]


def test_the_table_of_families_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    families = importlib.import_module("families")
    state, document = tmp_path / "state.json", tmp_path / "families.md"
    asked = ["--family", "cogview4", "--family", "zimage", "--how", "float32-jit", "--state", str(state)]
    monkeypatch.setattr(sys, "argv", ["families.py", *asked, "--markdown", str(document)])
    families.main()
    lines = document.read_text().partition("\n| class")[1:]
    lines = "".join(lines).strip().splitlines()
    assert lines[0] == "| class | float32 jit |"
    assert lines[2].startswith("| CogView4Transformer2DModel | pass, ")
    assert lines[3] == "| ZImageTransformer2DModel | refused |"
    assert lines[5].startswith("- ZImageTransformer2DModel: ")
    assert lines[-1].startswith("1 of 2 passed. Measured on a CPU")
    capsys.readouterr()
    monkeypatch.setattr(families, "outcome", None)  # what is known is not run again
    families.main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["cogview4", "zimage"]


def test_what_needs_a_gpu_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = importlib.import_module("gpu")
    gpu.products("cpu", gpu.SMALL)
    gpu.observing("cpu", gpu.SMALL)
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[2:5]] == ["unobserved", "blocks", "all"]
    assert said[5] == "observed outputs equal the unobserved bit for bit: yes"
