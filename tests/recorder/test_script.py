"""`parity record DIR --script FILE -- ARGS`: a script without an edit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter
from parity.golden.faults import kept_faults
from tests.support.cli import cli as parity

SCRIPT = """
import sys
import torch
from diffusers import CogVideoXPipeline

from beside import size

pipe = CogVideoXPipeline.from_pretrained(sys.argv[1])
pipe.set_progress_bar_config(disable=True)
drawn = torch.Generator().manual_seed(0)
video = pipe("a cat", num_inference_steps=2, generator=drawn, output_type="np", **size).frames
print("made", video.shape)
END
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("size = {'height': 32, 'width': 32, 'num_frames': 9}\n")
    (tmp_path / "script.py").write_text(SCRIPT.replace("END", ""))
    return tmp_path / "script.py"


def model() -> str:
    from parity.models.registry import resolve_model

    return str(resolve_model("tiny-cogvideox-1.5"))


def test_a_script_is_recorded_without_an_edit(script: Path, tmp_path: Path) -> None:
    where = tmp_path / "golden"
    done = parity("record", str(where), "--script", str(script), "--floors", "none", "--", model())
    assert done.code == 0, done.err
    assert done.out == "made (1, 9, 32, 32, 3)\n"
    assert "2 steps recorded to" in done.err
    golden = Golden.open(where)
    assert (golden.complete, golden.steps, golden.provenance.model) == (True, (-1, 0, 1), "CogVideoXPipeline")


def test_a_script_that_ends_hard_has_been_recorded(script: Path, tmp_path: Path) -> None:
    """As public ports end: `os._exit(0)` past torchax's threads."""
    script.write_text(SCRIPT.replace("END", "import os\nsys.stdout.flush()\nos._exit(0)"))
    words = ("record", str(tmp_path / "golden"), "--script", str(script), "--floors", "none", "--", model())
    done = subprocess.run([sys.executable, "-m", "parity", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert Golden.open(tmp_path / "golden").complete


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("sys.exit(3)", "ended with sys.exit(3)"),
        ("sys.exit('my words')", "ended with sys.exit('my words')"),
        ("raise RuntimeError('mine')", "raised at script.py:13: RuntimeError: mine"),
        ("import no_such_module", "raised at script.py:13: ModuleNotFoundError"),
    ],
)
def test_how_a_script_ends_badly_is_told(script: Path, tmp_path: Path, end: str, message: str) -> None:
    """Its own exit code could be 1, which says that something diverged; its exception is no defect of parity."""
    script.write_text(SCRIPT.replace("END", end))
    where = tmp_path / "golden"
    done = parity("record", str(where), "--script", str(script), "--floors", "none", "--", model())
    assert done.code == 2
    assert message in done.err.splitlines()[-1]
    assert "what was recorded until then is kept" in done.err
    assert Golden.open(where).complete


def test_a_recording_that_could_not_be_written_is_no_success(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UsageError("no space left")

    monkeypatch.setattr(GoldenWriter, "write_step", full)
    done = parity("record", str(tmp_path / "golden"), "--script", str(script), "--floors", "none", "--", model())
    assert (done.code, done.out) == (2, "made (1, 9, 32, 32, 3)\n")
    assert "is not whole: no space left" in done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("import sys; sys.exit(0)", (), "called no diffusers pipeline"),
        ("print(1)", (), "called no diffusers pipeline"),
        (None, (), "there is no file"),
        ("print(1)", ("--overwrite", "x"), "called no diffusers pipeline"),
        (
            "print(1)",
            ("--steps", "5"),
            "beside it only --sites, --values, --floors, --causes and --overwrite",
        ),
        ("print(1)", ("--side", "candidate"), "has its own model, settings and steps"),
    ],
)
def test_wrong_usage(text: str | None, words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    if text is not None:
        script.write_text(text)
    done = parity("record", str(tmp_path / "golden"), "--script", str(script), *words)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "golden").exists()


def test_arguments_without_a_script_are_refused(tmp_path: Path) -> None:
    done = parity("record", str(tmp_path / "golden"), "another")
    assert done.code == 2
    assert "'another' is no option: arguments after the folder are those of --script FILE" in done.err


def test_known_faults_are_kept_of_a_script(script: Path, tmp_path: Path) -> None:
    where = tmp_path / "golden"
    done = parity("record", str(where), "--script", str(script), "--floors", "rounding", "--causes", "--", model())
    assert done.code == 0, done.err
    assert frozenset({"attention.scale=1"}) in kept_faults(where, 0, "transformer")


def test_known_faults_of_paritys_own_models_are_not_recorded(tmp_path: Path) -> None:
    done = parity("record", str(tmp_path / "golden"), "--causes")
    assert (done.code, "--causes is for --script FILE" in done.err) == (2, True)
