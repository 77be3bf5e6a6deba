"""`parity init`: every file that it writes runs as it is, and knows its model."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchax")

from parity.paths.live import Host
from tests.support.cli import cli
from tests.support.models import checkpoint
from tests.support.ports import compare
from tests.support.scripts import ltx


@pytest.mark.parametrize("kind", ["", "--jax"])
def test_a_port_agrees_with_its_reference_and_is_observed(kind: str, tmp_path: Path) -> None:
    where = tmp_path / "my_port.py"
    assert f"--port {where}:build" in cli("init", where, *kind.split(), code=0).out
    result = compare(f"{where}:reference", f"{where}:build", openers=Host(), checks="logic")
    assert result.verdict == "pass", result.reason
    assert {"blocks.0:out", "blocks.1:out"} <= {d.key.site for d in result.sites}
    assert "exists; name another file" in cli("init", where, code=2).said


def test_what_to_try_and_what_to_type_once_a_function_is_filled_in(tmp_path: Path) -> None:
    ltx()[0].transformer.save_pretrained(tmp_path / "ckpt" / "transformer")
    told = cli("init", "x.py", "--jax", "--model", "ckpt", cwd=tmp_path, code=0).out
    as_it_is = "parity run --reference-port x.py:reference --port x.py:build"
    assert told == f"wrote x.py; try: {as_it_is}\nonce your port is in it: parity run --model ckpt --port x.py:build\n"


def test_a_script_records_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("init", "mine.py", "--script", cwd=tmp_path, code=0)
    monkeypatch.chdir(tmp_path)
    for arguments in (["gpu"], ["tpu", "gpu"]):
        monkeypatch.setattr(sys, "argv", ["mine.py", *arguments])
        runpy.run_path("mine.py", run_name="__main__")
    cli("diff", "gpu", "tpu", code=0)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        pytest.param("tiny-cogvideox-1.0", "#     transformer_blocks.N.attn1.to_q", marks=pytest.mark.slow),
        pytest.param("tiny-hunyuan-video-1.5", "model = traceable(model)", marks=pytest.mark.slow),
        ("ltx", 'case.folder / "transformer"'),
        # A config alone: its weights are drawn.
        pytest.param("wan", 'load_part(case.folder, "transformer", torch_dtype=dtype)', marks=pytest.mark.slow),
    ],
)
def test_class_arguments_and_modules_of_a_model_are_filled_in(model: str, said: str, tmp_path: Path) -> None:
    if model == "ltx":  # a class that parity has no line for, whose forward needs numbers
        model = str(tmp_path / "model")
        ltx()[0].transformer.save_pretrained(tmp_path / "model" / "transformer")
    model = str(checkpoint(model)) if model == "wan" else model
    where = tmp_path / "my_port.py"
    told = cli("init", where, "--torchax", "--model", model, code=0).out
    assert f"parity run --model {model} --port {where}:build" in told
    assert said in where.read_text()
    result = compare(None, f"{where}:build", model=model, openers=Host(), checks="logic")
    assert result.verdict == "pass", result.reason
