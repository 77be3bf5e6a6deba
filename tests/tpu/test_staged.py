"""A text encoder's and a VAE's largest call, from configs alone: the call that a run makes, and nothing of weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torchax")
import jax
import torch
from typer.testing import CliRunner

from parity import cli
from parity.errors import UsageError
from parity.models.family import Family
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.paths.jax.stage import TorchaxStage
from parity.paths.stages.known import encoder_stage, vae_stage
from parity.settings import parse
from parity.tpu.abstract import abstract_candidate
from parity.tpu.staged import AbstractStage, abstract_stage
from tests.conftest import TINY

pytestmark = pytest.mark.slow

MODELS = (TINY, "tiny-cogvideox-1.0")


@pytest.fixture(scope="module", params=MODELS)
def bare(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Family]:
    """A model's folder without a weight."""
    whole, folder = resolve_model(request.param), tmp_path_factory.mktemp("bare")
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    return make_case(request.param, folder, GenerationSpec.load(folder)), family_of(folder)


def staged(bare: tuple[Case, Family], name: str, *settings: str) -> AbstractStage:
    case, family = bare
    return abstract_stage(name, family, case, parse("torchax", settings), jax.devices("cpu"))


def called_with(stage: AbstractStage) -> list[tuple[int, ...]]:
    return [tuple(x.shape) for x in stage.call[0]]


def shapes_of_a_run(runner: TorchaxStage) -> list[list[tuple[int, ...]]]:
    """Of the tensors that each program of a run was made for."""
    return [[shape for shape, _ in leaves] for _, (_, leaves) in runner.programs.kept]


def test_a_decoder_s_call_is_one_of_a_run_s(bare: tuple[Case, Family]) -> None:
    case, family = bare
    stage = staged(bare, "vae")
    whole = make_case("", resolve_model(case.name), case.spec)
    runner = TorchaxStage(vae_stage(whole), parse("torchax"))
    runner.run({"latents": family.stage2(case, torch.zeros(case.latent_shape))}, None)
    made = shapes_of_a_run(runner)
    assert called_with(stage) in made
    assert stage.calls >= len(made)
    size = sum(torch.Size(shape).numel() for shape in called_with(stage))
    assert size == max(sum(torch.Size(shape).numel() for shape in shapes) for shapes in made)


def test_an_encoder_s_call_is_that_of_a_run(bare: tuple[Case, Family]) -> None:
    case, family = bare
    whole = make_case("", resolve_model(case.name), case.spec)
    for encoder in family.text(whole).encoders:
        stage = staged(bare, encoder.part)
        runner = TorchaxStage(encoder_stage(whole, encoder), parse("torchax"))
        runner.run(encoder.tokens["cond"], None)
        assert stage.calls == 1
        assert shapes_of_a_run(runner)[0][: len(called_with(stage))] == called_with(stage)


def test_tiles_are_smaller_and_more(bare: tuple[Case, Family]) -> None:
    case, family = bare
    large = make_case("", case.folder, GenerationSpec(height=320, width=320, num_frames=case.spec.num_frames))
    whole, tiled = (staged((large, family), "vae", f"vae.tiling={on}") for on in ("false", "true"))
    assert tiled.calls > whole.calls
    assert max(called_with(tiled)[0][-2:]) < max(called_with(whole)[0][-2:])


def test_it_is_lowered_observed_and_not(bare: tuple[Case, Family]) -> None:
    """With its modules named; observed, it gives more."""
    part = bare[1].text(bare[0]).encoders[-1].part
    stage = staged(bare, part)
    plain, observed = (stage.lowered(sites) for sites in ("none", "blocks"))
    assert f"{part}/" in plain.as_text(debug_info=True)
    count = [len(jax.tree.leaves(program.out_info)) for program in (plain, observed)]
    assert count[0] == 1 < count[1]
    with pytest.raises(UsageError, match="nowhere"):
        stage.lowered("nowhere*")


def test_another_stage_is_refused(bare: tuple[Case, Family]) -> None:
    with pytest.raises(UsageError, match=r"--stage 'decoder': .* has transformer, text_encoder.*, vae"):
        staged(bare, "decoder")


def test_a_setting_of_another_stage_is_refused(bare: tuple[Case, Family]) -> None:
    case, family = bare
    with pytest.raises(UsageError, match=r"attention\.kernel changes nothing in the vae's program"):
        staged(bare, "vae", "attention.kernel=splash")
    with pytest.raises(UsageError, match=r"vae\.tiling changes nothing in the transformer's program.*--stage"):
        abstract_candidate(family, case, parse("torchax", ["vae.tiling=true"]), jax.devices("cpu"))


def test_a_port_has_no_stages_here(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("")
    words = ["compile", "--topology", "v6e:2x2", "--stage", "vae", "--candidate-path", f"{tmp_path}/p.py:build"]
    done = CliRunner().invoke(cli.app, [*words, "--json"])
    assert done.exit_code == 2
    assert "goes without --candidate-path" in json.dumps(done.stderr)
