"""`parity init`: every file that it writes runs as it is, and knows its model."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchax")

from parity.commands.init import init
from parity.compare.diff import diff
from parity.compare.result import Result
from parity.errors import UsageError
from parity.paths.live import InProcess
from parity.runs import compare
from parity.runs.load import load_ports
from parity.runs.request import Request
from tests.recorder.pipelines import ltx


def written(where: Path, *, kind: str = "", model: str | None = None) -> str:
    init(
        where=where,
        torchax=kind == "torchax",
        jax=kind == "jax",
        nnx=kind == "nnx",
        script=kind == "script",
        model=model,
    )
    return where.read_text()


def run(candidate: str, reference: str | None, model: str | None, sites: str = "blocks") -> Result:
    openers = InProcess()
    ports = load_ports(reference, candidate, model, 60.0, openers)
    settings = ports.settings([], [])
    request = Request(model or str(reference), *settings, ports=ports, rounds="structure", sites=sites)
    return compare.run(request, lambda *progress: None, openers=openers)


@pytest.mark.parametrize("kind", ["", "jax", "torchax", "nnx"])
def test_a_port_agrees_with_its_reference_and_is_observed(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "my_port.py"
    written(where, kind=kind)
    assert f"--candidate-path {where}:build" in capsys.readouterr().out
    result = run(f"{where}:build", f"{where}:reference", None)
    assert result.verdict == "pass", result.reason
    assert {"blocks.0:out", "blocks.1:out"} <= {d.key.site for d in result.sites}


def test_a_port_is_judged_by_its_prediction_where_no_site_is_chosen(tmp_path: Path) -> None:
    where = tmp_path / "my_port.py"
    written(where, kind="torchax")
    result = run(f"{where}:build", f"{where}:reference", None, sites="none")
    assert result.verdict == "pass", result.reason
    assert "--sites none: only noise_pred and latents were compared" in [note.text for note in result.notes]


def test_a_script_records_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "mine.py", kind="script")
    monkeypatch.chdir(tmp_path)
    for arguments in (["gpu"], ["tpu", "gpu"]):
        monkeypatch.setattr(sys, "argv", ["mine.py", *arguments])
        runpy.run_path("mine.py", run_name="__main__")
    assert diff("gpu", "tpu").verdict == "pass"


def test_a_model_s_class_arguments_and_modules_are_filled_in_and_its_port_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, model = tmp_path / "my_port.py", "tiny-cogvideox-1.0"
    text = written(where, kind="torchax", model=model)
    ast.parse(text)
    assert "from diffusers import CogVideoXTransformer3DModel" in text
    assert "#     encoder_hidden_states: [1, " in text
    assert "#     transformer_blocks.N.attn1.to_q" in text
    assert f"parity run --model {model} --candidate-path {where}:build" in capsys.readouterr().out
    assert run(f"{where}:build", None, model).verdict == "pass"


def test_a_model_whose_forward_cannot_be_traced_has_a_port_that_can(tmp_path: Path) -> None:
    where, model = tmp_path / "my_port.py", "tiny-hunyuan-video-1.5"
    text = written(where, kind="torchax", model=model)
    assert "model = traceable(HunyuanVideo15Transformer3DModel.from_pretrained(" in text
    assert run(f"{where}:build", None, model).verdict == "pass"


def test_a_port_of_any_class_is_given_its_numbers_too(tmp_path: Path) -> None:
    """LTX's forward needs the number of frames, their height and width."""
    pipe, _ = ltx()
    pipe.transformer.save_pretrained(tmp_path / "model" / "transformer")
    where, model = tmp_path / "my_port.py", str(tmp_path / "model")
    written(where, kind="torchax", model=model)
    assert 'case.folder / "transformer"' in where.read_text()
    result = run(f"{where}:build", None, model)
    assert result.verdict == "pass", result.reason


def test_a_transformer_saved_alone_is_loaded_from_its_own_folder(tmp_path: Path) -> None:
    pipe, _ = ltx()
    pipe.transformer.save_pretrained(tmp_path / "model")
    written(tmp_path / "my_port.py", kind="torchax", model=str(tmp_path / "model"))
    assert ".from_pretrained(case.folder)" in (tmp_path / "my_port.py").read_text()


def test_another_kind_of_file_holds_the_model_s_facts_too(tmp_path: Path) -> None:
    text = written(tmp_path / "port.py", kind="nnx", model="tiny-hunyuan-video-1.5")
    ast.parse(text)
    assert "The model: diffusers.HunyuanVideo15Transformer3DModel; for --model tiny-hunyuan-video-1.5" in text
    assert "#     encoder_attention_mask: [1, " in text


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("port.txt", {}, "is not the name of a Python file"),
        ("port.py", {"torchax": True, "nnx": True}, "--torchax and --nnx exclude each other"),
        ("there.py", {}, "exists; name another file"),
        ("nowhere/port.py", {}, "cannot write"),
    ],
)
def test_mistakes(name: str, options: dict[str, bool], message: str, tmp_path: Path) -> None:
    (tmp_path / "there.py").touch()
    with pytest.raises(UsageError, match=message):
        init(where=tmp_path / name, **options)
