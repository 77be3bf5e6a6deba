"""`parity run` as a command: the document, a kept run, its own processes, and what bad input is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from parity.golden import Golden, verify
from parity.models.hunyuan_video_15 import HunyuanVideo15
from parity.models.stage_files import read_stage2, write_stage1
from tests.paths.sides import inputs, tiny
from tests.support.cli import Ran, cli
from tests.support.lab import Lab
from tests.support.models import NANO, checkpoint

pytest.importorskip("torchax")


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A run that fails, kept."""
    out = tmp_path_factory.mktemp("kept") / "run"
    words = ("--steps", 2, "--sites", "proj_out", "--values", "proj_out:out", "--out", out)
    return out, cli(
        "run", "--format", "json", "--model", checkpoint(NANO), "--candidate", "attention.mask=none", *words, code=1
    )


@pytest.mark.slow
def test_worker_processes_come_to_the_same_as_one_process(failed: tuple[Path, Ran]) -> None:
    _, done = failed
    result = Lab(checkpoint(NANO)).judge("attention.mask=none", steps=2, sites="proj_out")
    assert result.origin is not None
    assert (result.verdict, result.failed) == (done.json["verdict"], done.json["failed"])
    assert result.origin.key.site == done.json["origin"]["site"]
    for ours, theirs in zip(result.steps, done.json["steps"], strict=True):
        assert ours.noise_pred.ratio == pytest.approx(theirs["noise_pred"]["ratio"], rel=1e-6)


def test_kept_run_can_be_opened(failed: tuple[Path, Ran]) -> None:
    out, done = failed
    assert done.json["next"] == [f"parity explain {out}", f"parity report {out}"]
    assert json.loads((out / "result.json").read_text()) == {**done.json, "next": []}
    for role, backend in (("reference", "torch"), ("candidate", "torchax")):
        golden = Golden.open(out / role)
        assert not list(verify(out / role))
        assert (golden.complete, golden.steps) == (True, (0, 1))
        assert (golden.provenance.side, golden.provenance.backend) == (role, backend)
        last = golden.read_step(1)
        assert bool(last.floors) == (role == "reference")
        (after,) = [r for r in last.records if r.key.site == "loop:latents.after"]
        path = out / f"{role}_latents.safetensors"
        assert np.array_equal(read_stage2(path).numpy(), np.asarray(after.value))
        with safe_open(path, framework="pt") as file:
            assert file.metadata()["num_inference_steps"] == "2"
        held = [r for r in last.records if r.key.site == "proj_out:out"]
        assert held
        assert all(isinstance(r.value, np.ndarray) for r in held)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "settings",
    [("mesh=dp=1,sp=1,tp=2",), ("mesh=dp=2,sp=2,tp=2", "attention.kernel=splash", "attention.mask=segment_ids")],
    ids=["tp", "all axes"],
)
def test_mesh_of_eight_devices_passes(settings: tuple[str, ...]) -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    words = [word for setting in settings for word in ("--candidate", setting)]
    command = [sys.executable, "-m", "parity", "run", "--format", "json", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert document["verdict"] == "pass"
    assert {f"{d['setting']}={d['candidate']}" for d in document["differing_settings"]} == set(settings)
    (reached,) = [c for c in document["preflight"] if c["check"] == "settings reached"]
    assert all(setting.split("=")[0] in reached["detail"] for setting in settings)


# --- bad input


def refused(*words: object) -> str:
    """The one line that a bad input is told, with nothing on stdout and no traceback."""
    done = cli("run", "--format", "json", *words, code=2)
    assert done.out == ""
    assert "Traceback" not in done.err
    *progress, last = done.err.splitlines()
    assert last.startswith("parity: ")
    assert not any(line.startswith("parity: ") for line in progress)
    return last


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--reference", "nonsense=1"), "unknown setting 'nonsense'"),
        (("-c", "attention=sdpa"), "unknown setting 'attention'; there are attention.kernel, attention.mask, "),
        (("--candidate", "attention.kernel=flex"), "it takes: sdpa"),
        (("--checks", "three"), "'three' is not one of 'both', 'logic', 'precision'"),
        (("--isolate", "block"), "'block' is not one of 'none', 'steps'"),
        (("--model", "no-such-model"), "unknown model 'no-such-model'"),
        (("--steps", "0"), "--steps must be from 1 to 100000, found 0"),
        (("--seed", "-1"), "--seed"),
        (("--candidate", "mesh=dp=4,sp=4,tp=4"), "needs 64 devices"),
        (("--sites", "no.such.module"), "no module matches the site 'no.such.module'"),
        (("--values", "no.such.module"), "no module matches the site 'no.such.module'"),
        (("--inputs", "no-such-file.safetensors"), "no such file"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_bad_option_is_one_clear_line(options: tuple[str, ...], said: str) -> None:
    model = () if "--model" in options else ("--model", checkpoint(NANO))
    assert said in refused(*model, *options)


def _file(folder: Path) -> Path:
    (folder / "model").write_text("no folder")
    return folder / "model"


def _config(text: str) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        (folder / "transformer").mkdir()
        (folder / "transformer" / "config.json").write_text(text)
        return folder

    return made


def _without_weights(folder: Path) -> Path:
    for path in tiny().case.folder.rglob("*"):
        if path.is_file() and not (path.parent.name == "transformer" and path.suffix == ".safetensors"):
            target = folder / path.relative_to(tiny().case.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    return folder


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda folder: folder, "no checkpoint in diffusers layout"),
        (_file, "is a file"),
        (_config('{"_class_name": "FluxTransformer2DModel"}'), "FluxTransformer2DModel"),
        (_config("{"), "transformer"),
        (_config("[1]"), "transformer"),
        (_config("{}"), "transformer"),
        (_without_weights, "transformer"),
    ],
    ids=["empty", "file", "another class", "cut", "list", "nothing", "no weights"],
)
def test_bad_checkpoint_is_one_clear_line(made: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    assert said in refused("--model", made(tmp_path), "--out", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_embeddings_from_a_stage1_file_are_the_prompts(tmp_path: Path) -> None:
    """A port's embeddings: those of the tiny model's own prompt."""
    write_stage1(tmp_path / "stage1", HunyuanVideo15.streams, inputs("torch").conditions)
    lab = Lab(checkpoint(NANO))
    plain, given = lab.judge(), lab.judge(stage1=tmp_path / "stage1")
    assert plain.verdict == given.verdict == "pass"
    assert [s.noise_pred for s in plain.steps] == [s.noise_pred for s in given.steps]
