"""The VAE stage: diffusers' decode bit for bit on the reference, agreed with by the candidate, and faults have origins.

Small latents: a decode takes a tenth of a second, and each program is compiled once.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import diffusers
import numpy as np
import pytest
import torch

from parity.compare.result import Result
from parity.errors import UnjudgedError
from parity.hooks.sites import plan_sites
from parity.models.folder import load_part
from parity.models.registry import make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.models.vae import causal_mask
from parity.paths.stage import TorchStage
from parity.runs.request import Request
from parity.runs.sink import NoSink
from parity.runs.stages import vae as vae_module
from parity.runs.stages.stage import StagePair, load_stage
from parity.runs.stages.vae import Ends, decode_round, vae_stage
from parity.settings import parse

HUNYUAN, COG = "tiny-hunyuan-video-1.5", "tiny-cogvideox-1.5"
SHAPES = {HUNYUAN: (1, 32, 3, 1, 2), COG: (1, 16, 5, 2, 3)}
"""CogVideoX's five latent frames are a first chunk of three and, with the cache of convolutions, a second of two."""
FRAMES = {HUNYUAN: 9, COG: 17}


@functools.cache
def made(name: str) -> Case:
    folder = resolve_model(name)
    return make_case(name, folder, GenerationSpec.load(folder))


def latents(name: str, shape: tuple[int, ...] | None = None, seed: int = 0) -> np.ndarray:
    given = shape or SHAPES[name]
    return np.random.default_rng(seed).standard_normal(given).astype(np.float32)


@functools.cache
def pair(name: str, *settings: str) -> StagePair:
    return load_stage(vae_stage(made(name)), parse("torch", settings), parse("torchax", settings))


def decode(
    name: str, ends: Ends, monkeypatch: pytest.MonkeyPatch, loaded: StagePair | None = None, sites: str = "blocks"
) -> Result:
    """One structure round, on the pair that is loaded already."""
    monkeypatch.setattr(vae_module, "load_stage", lambda *_: loaded or pair(name))
    request = Request(name, parse("torch"), parse("torchax"))
    return decode_round(made(name), request, ends, (sites, ()), "structure", lambda *_: None, NoSink())


@pytest.mark.parametrize("name", [HUNYUAN, COG])
def test_the_reference_is_the_pipelines_own_decode_bit_for_bit(name: str) -> None:
    x = torch.from_numpy(latents(name))
    vae = load_part(made(name).folder, "vae").eval()
    with torch.no_grad():
        if name == COG:
            pipeline = diffusers.CogVideoXPipeline.__new__(diffusers.CogVideoXPipeline)
            pipeline.__dict__.update(vae=vae, vae_scaling_factor_image=vae.config.scaling_factor)
            expected = pipeline.decode_latents(x.permute(0, 2, 1, 3, 4))
        else:
            expected = vae.decode(x / vae.config.scaling_factor, return_dict=False)[0]
    assert np.array_equal(pair(name).truth.run({"latents": x}, None).outputs["frames"], expected.numpy())


@pytest.mark.parametrize("name", [HUNYUAN, COG])
def test_both_sides_agree_and_every_frame_is_accounted_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = decode(name, Ends(latents(name)), monkeypatch)
    assert result.verdict == "pass", result.reason
    assert [f.frame for f in result.frames] == list(range(FRAMES[name]))
    assert all(0 < f.by_itself.distance.rel_l2 < 1e-4 for f in result.frames)
    assert all(f.by_itself.distance.ratio < 3 and f.by_itself.psnr > 100 for f in result.frames)
    (stage,) = result.stages
    assert (stage.stage, stage.output) == ("vae", "frames")
    assert 0 < stage.by_itself.rel_l2 < 1e-4
    assert {d.key.stage for d in result.sites} == {"vae"}
    assert {c.check: c.verdict for c in result.preflight}["frames"] == "pass"
    calls = {d.key.call for d in result.sites if d.key.module == "decoder.up_blocks.1"}
    assert calls == ({0, 1} if name == COG else {0})


@pytest.mark.parametrize("name", [HUNYUAN, COG])
def test_observing_changes_no_bit(name: str) -> None:
    loaded = pair(name)
    plan = plan_sites(["", *loaded.candidate.modules], "blocks", trunk="decoder")
    x = {"latents": torch.from_numpy(latents(name))}
    for runner in (loaded.truth, loaded.candidate):
        seen, plain = runner.run(x, plan), runner.run(x, None)
        assert len(plain.records) == 1
        assert np.array_equal(seen.outputs["frames"], plain.outputs["frames"])


def test_a_fault_inside_the_decoder_has_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "decoder.up_blocks.2.resnets.0.conv1"
    params = pair(HUNYUAN).candidate.params  # type: ignore[attr-defined]
    wrong = next(n for n in params if n.startswith(module) and n.endswith("weight"))
    monkeypatch.setitem(params, wrong, params[wrong] * 1.01)
    result = decode(HUNYUAN, Ends(latents(HUNYUAN)), monkeypatch)
    assert (result.verdict, result.failed) == ("fail", "structure")
    assert result.origin is not None
    assert (result.origin.key.stage, result.origin.birth) == ("vae", "module")
    assert result.origin.key.module.startswith(module)  # the second look, inside the block
    assert module in result.reason
    assert result.frames[-1].by_itself.distance.ratio > 3


def test_the_chain_is_judged_by_the_frames_of_each_sides_own_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    start = latents(HUNYUAN)
    moved = start + 1e-3 * latents(HUNYUAN, seed=1)
    beside = {"rounding 0": start + 1e-3 * latents(HUNYUAN, seed=2)}
    far, near = Ends(start, moved), Ends(start, moved, beside)
    result = decode(HUNYUAN, far, monkeypatch)
    (stage,) = result.stages
    assert (result.verdict, result.failed, stage.verdict) == ("fail", "structure", "fail")
    assert "the frames of the whole chain differ by" in result.reason
    assert stage.by_itself.ratio < 3 < stage.in_chain.ratio
    assert all(f.in_chain is not None and f.in_chain.distance.rel_l2 > 1e-4 for f in result.frames)
    result = decode(HUNYUAN, near, monkeypatch)
    assert result.verdict == "pass", result.reason
    assert 0.1 < result.stages[0].in_chain.ratio < 3


def test_latents_in_another_layout_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    result = decode(COG, Ends(latents(COG), latents(COG).transpose(0, 2, 1, 3, 4)), monkeypatch)
    assert (result.verdict, result.failed, result.frames) == ("fail", "preflight", ())
    assert "they are laid out [B, T, C, H, W]" in result.reason


def test_tiles_and_slices_are_taken_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    enable = diffusers.AutoencoderKLCogVideoX.enable_tiling
    # Tiles of 4 x 5 latents in place of the class's 4 x 6: two of them, blended, of different widths.
    monkeypatch.setattr(diffusers.AutoencoderKLCogVideoX, "enable_tiling", lambda vae: enable(vae, 32, 40))
    given = latents(COG, (2, 16, 1, 2, 6))
    loaded = pair(COG, "vae.tiling=true", "vae.slicing=true")
    result = decode(COG, Ends(given), monkeypatch, loaded, sites="none")
    assert result.verdict == "pass", result.reason
    assert len(result.frames) == 2
    assert all(0 < f.by_itself.distance.rel_l2 < 1e-4 for f in result.frames)
    assert loaded.candidate.reached.marks.keys() >= {"vae.tiling", "vae.slicing"}
    x = {"latents": torch.from_numpy(given)}
    whole, tiled = (p.truth.run(x, None).outputs["frames"] for p in (pair(COG), loaded))
    assert not np.allclose(whole, tiled, atol=1e-2)


def test_a_setting_that_is_never_reached_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = TorchStage(vae_stage(made(COG)), parse("torch", ["vae.slicing=true"]))
    loaded = replace(pair(COG), truth=truth)
    with pytest.raises(UnjudgedError, match=r"vae\.slicing"):  # one video: there is nothing to slice
        decode(COG, Ends(latents(COG)), monkeypatch, loaded)


def test_the_mask_is_the_classes_own() -> None:
    block = diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15.HunyuanVideo15AttnBlock
    for batch in (None, 2):
        given = (3, 4, torch.float32, "cpu")
        assert torch.equal(causal_mask(*given, batch), block.prepare_causal_attention_mask(*given, batch))
