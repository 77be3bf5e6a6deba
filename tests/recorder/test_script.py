"""`parity record DIR --script FILE -- ARGS`: a script without an edit."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter
from parity.models.registry import resolve_model
from tests.support.cli import Ran, cli

SCRIPT = """
import sys
import torch
from diffusers import CogVideoXPipeline

from sizes import size

pipe = CogVideoXPipeline.from_pretrained(sys.argv[1])
pipe.set_progress_bar_config(disable=True)
drawn = torch.Generator().manual_seed(0)
video = pipe("a cat", num_inference_steps=2, generator=drawn, output_type="np", **size).frames
print("made", video.shape)
END
"""
MADE = "made (1, 9, 32, 32, 3)\n"


def model() -> str:
    return str(resolve_model("tiny-cogvideox-1.5"))


def script(folder: Path, end: str = "") -> Path:
    (folder / "sizes.py").write_text("size = {'height': 32, 'width': 32, 'num_frames': 9}\n")
    (folder / "script.py").write_text(SCRIPT.replace("END", end))
    return folder / "script.py"


def record(folder: Path, *options: str, end: str = "") -> Ran:
    return cli("record", folder / "golden", "--script", script(folder, end), *options, "--", model())


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("", "2 steps recorded to"),
        ("sys.exit(0)", "2 steps recorded to"),
        ("pipe('a dog', num_inference_steps=1, output_type='np', **size)", "1 later call of a pipeline not recorded"),
        ("sys.exit(3)", "ended with sys.exit(3)"),
        ("sys.exit('my words')", "ended with sys.exit('my words')"),
        ("raise RuntimeError('mine')", "raised at script.py:13: RuntimeError: mine"),
        ("import no_such_module", "raised at script.py:13: ModuleNotFoundError"),
        ("class Stop(BaseException): pass\nraise Stop('mine')", "raised at script.py:14: Stop: mine"),
    ],
)
def test_script_is_recorded_however_it_ends(tmp_path: Path, end: str, message: str) -> None:
    """Its own exit code could be 1, which says that something diverged; its exception is no internal error."""
    done = record(tmp_path, "--floors", "none", end=end)
    ended_well = end in ("", "sys.exit(0)") or end.startswith("pipe(")
    assert (done.code, done.out) == (0 if ended_well else 2, MADE), done.err
    assert message in done.said
    assert ("what was recorded until then is kept" in done.said) == (not ended_well)
    golden = Golden.open(tmp_path / "golden")
    assert (golden.complete, golden.steps, golden.provenance.model) == (True, (-1, 0, 1), "CogVideoXPipeline")


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("num_inference_steps=1", "a call of 1 of the golden's 2 steps is taken for one to compile"),
        pytest.param(
            "num_inference_steps=3",
            "a call of 3 of the golden's 2 steps is taken for one to compile",
            marks=pytest.mark.slow,
        ),
        pytest.param("callback_on_step_end=lambda *_: 1 / 0", "1 step recorded to", marks=pytest.mark.slow),
        ("height=33", "nothing was recorded"),  # it is refused before the first forward
    ],
)
def test_call_that_is_to_compile_or_fails_is_recorded_anew(first: str, said: str, tmp_path: Path) -> None:
    record(tmp_path, "--floors", "none")
    call = "pipe('a cat', num_inference_steps=2, generator=drawn.manual_seed(0), output_type='np', **size)"
    file = script(tmp_path)
    begin, line, end = file.read_text().partition("video = ")
    options = f"{{'num_inference_steps': 2, **size, **dict({first})}}"
    made = f"import contextlib\nwith contextlib.suppress(Exception):\n    pipe('a cat', generator=drawn, **{options})\n"
    file.write_text(f"{begin}{made}{call}\n{line}{end}")
    words = ("record", tmp_path / "candidate", "--script", file, "--inputs", tmp_path / "golden", "--", model())
    assert said in cli(*words, code=0).err
    assert cli("diff", tmp_path / "golden", tmp_path / "candidate").code == 0


@pytest.mark.slow
def test_perturbed_runs_end_with_the_recording_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\nopen('began', 'w')\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "parity", "record", "golden", "--script", "script.py"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE) as recording:
        while not (tmp_path / "began").exists():
            time.sleep(0.1)
        recording.kill()
        recording.communicate(timeout=10)  # nobody prints to it any more


def test_a_script_that_ends_before_its_pipeline_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("1 / 0\n")
    done = cli("record", tmp_path / "golden", "--script", tmp_path / "script.py", "--floors", "none")
    assert done.code == 2
    assert "raised at script.py:1: ZeroDivisionError: division by zero; nothing was recorded" in done.said
    assert not (tmp_path / "golden").exists()


MODULAR = """
import sys
import torch
from diffusers import HunyuanVideo15ModularPipeline, HunyuanVideo15Pipeline

usual = HunyuanVideo15Pipeline.from_pretrained(sys.argv[1])
pipe = HunyuanVideo15ModularPipeline()
pipe.update_components(**{name: part for name, part in usual.components.items() if name in pipe.components})
pipe(prompt="a cat", num_inference_steps=1, height=32, width=32, num_frames=1, output_type="np")
"""


def test_modular_pipeline_is_recorded(tmp_path: Path) -> None:
    """It is no `DiffusionPipeline`, and has its components later."""
    (tmp_path / "script.py").write_text(MODULAR)
    made = str(resolve_model("tiny-hunyuan-video-1.5"))
    cli("record", tmp_path / "golden", "--script", tmp_path / "script.py", "--floors", "none", "--", made, code=0)
    golden = Golden.open(tmp_path / "golden")
    assert (golden.complete, golden.steps, golden.provenance.model) == (True, (-1, 0), "HunyuanVideo15ModularPipeline")
    assert {record.key.branch for record in golden.read_step(0).records} >= {"cond", "uncond"}


HARD = "import os\nsys.stdout.flush()\nos._exit({})"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "ended with os._exit(1); what was recorded until then")])
def test_script_that_ends_hard_is_recorded(code: int, said: str, tmp_path: Path) -> None:
    """As public ports end: `os._exit(0)` past torchax's threads. Another code is none of parity's."""
    file = script(tmp_path, HARD.format(code))
    words = ("record", str(tmp_path / "golden"), "--script", str(file), "--floors", "none", "--", model())
    done = subprocess.run([sys.executable, "-m", "parity", *words], capture_output=True, text=True, timeout=300)
    assert (done.returncode, said in done.stderr) == (2 * code, True), done.stderr
    assert Golden.open(tmp_path / "golden").complete


ELSEWHERE = """
import multiprocessing, os, threading
os.makedirs("elsewhere")
os.chdir("elsewhere")
child = multiprocessing.get_context("fork").Process(target=print)
child.start()
child.terminate()
child.join()
assert child.exitcode in (0, -15), child.exitcode
"""


def test_a_script_that_goes_elsewhere_and_forks_is_recorded_where_it_was_asked(tmp_path: Path) -> None:
    file = script(tmp_path)
    call = file.read_text().partition("video = ")
    file.write_text(f"{call[0]}{ELSEWHERE}video = {call[2]}")
    done = cli("record", "golden", "--script", file, "--floors", "none", "--", model(), cwd=tmp_path, code=0)
    assert done.out == MADE
    assert Golden.open(tmp_path / "golden").complete


def test_a_place_that_cannot_be_written_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    file = tmp_path / "script.py"
    file.write_text("open('ran', 'w')")
    done = cli("record", tmp_path / "taken" / "golden", "--script", file, code=2, cwd=tmp_path)
    assert f"a golden needs a folder, and '{tmp_path / 'taken'}' is a file; name another place" in done.err
    assert not (tmp_path / "ran").exists()


def test_recording_that_could_not_be_written_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise UsageError("no space left")

    monkeypatch.setattr(GoldenWriter, "write_step", full)
    done = record(tmp_path, "--floors", "none")
    assert (done.code, done.out) == (2, MADE)
    assert "is not whole: no space left" in done.said


@pytest.mark.slow
def test_floors_of_a_script_are_recorded(tmp_path: Path) -> None:
    """Its text is encoded before the pipeline is called, in bfloat16, which moves it by some 1e-2."""
    (tmp_path / "script.py").write_text(ENCODES)
    where = tmp_path / "golden"
    cli("record", where, "--script", tmp_path / "script.py", "--", model(), code=0, cwd=tmp_path)
    step = Golden.open(where).read_step(0)
    record = next(r for r in step.records if r.key.site == ":in.encoder_hidden_states")
    assert record.moments is not None
    assert 1e-3 < step.floors[record.key].l2 / record.moments.l2 < 1e-1
    assert (tmp_path / "ran").read_text() == "once\n", "the perturbed runs end with the pipeline's call"


ENCODES = """
import sys
import torch
from diffusers import CogVideoXPipeline

pipe = CogVideoXPipeline.from_pretrained(sys.argv[1], torch_dtype=torch.bfloat16)
with torch.no_grad():
    text, negative = pipe.encode_prompt("a cat", "", max_sequence_length=16)
pipe.text_encoder = None
try:
    pipe(prompt_embeds=text, negative_prompt_embeds=negative, num_inference_steps=1, height=32, width=32, num_frames=9,
         generator=torch.Generator().manual_seed(0), output_type="latent")
except BaseException:
    print("caught", file=open("ran", "a"))
print("once", file=open("ran", "a"))
"""

ONLY = "it takes only --inputs, --sites, --values, --floors and --overwrite"


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("import sys; sys.exit(0)", ["--script", "script.py", "--floors", "none"], "called no diffusers pipeline"),
        ("print(1)", ["--script", "script.py", "--floors", "none", "--overwrite", "x"], "called no diffusers pipeline"),
        ("", ["--script", "nowhere.py"], "there is no file"),
        ("print(1)", ["--script", "script.py", "--inputs", "nowhere"], "there is no golden here"),
        ("print(1)", ["--script", "script.py", "--inputs", "g", "--floors", "v6e"], "is of the reference"),
        ("print(1)", ["--script", "script.py", "--steps", "5"], ONLY),
        ("print(1)", ["--script", "script.py", "--side", "candidate"], "has its own model, settings and steps"),
        ("", ["another"], "'another' is no option: arguments after the folder are those of --script FILE"),
    ],
)
def test_wrong_usage(text: str, words: list[Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    done = cli("record", "golden", *words, code=2, cwd=tmp_path)
    assert message in done.err
    assert not (tmp_path / "golden").exists()
