"""The VAE stage: diffusers' decode bit for bit on the reference, agreed with by the candidate, and faults have origins.

Small latents: a decode takes a tenth of a second, and each program is compiled once.
"""

from __future__ import annotations

import dataclasses

import diffusers
import numpy as np
import pytest
import torch

from parity.compare.result import Result
from parity.errors import InconclusiveError
from parity.hooks.sites import plan_sites
from parity.models.folder import load_part
from parity.paths.plan import VAE_INPUT, Array, Ends, Pair
from parity.runs import follow
from parity.runs.chain import decode_round
from parity.runs.request import Request
from parity.settings import parse
from tests.paths.sides import tiny
from tests.paths.stages import OPENERS, loaded_stage, run_stage

HUNYUAN, COG = "tiny-hunyuan-video-1.5", "tiny-cogvideox-1.5"
SHAPES = {HUNYUAN: (1, 32, 3, 1, 2), COG: (1, 16, 5, 2, 3)}
"""CogVideoX's five latent frames are a first chunk of three and, with the cache of convolutions, a second of two."""
FRAMES = {HUNYUAN: 9, COG: 17}


def latents(name: str, shape: tuple[int, ...] | None = None, seed: int = 0) -> np.ndarray:
    given = shape or SHAPES[name]
    return np.random.default_rng(seed).standard_normal(given).astype(np.float32)


def held(x: np.ndarray) -> Array:
    return Array(x, "float32")


def chain(ours: np.ndarray, theirs: np.ndarray, **beside: np.ndarray) -> Pair[Ends]:
    """What two loops came to, and the reference's other runs."""
    others = {name.replace("_", " "): {"latents": held(x)} for name, x in beside.items()}
    return Pair(Ends({"": {"latents": held(ours)}, **others}), Ends({"": {"latents": held(theirs)}}))


def decode(
    name: str,
    start: np.ndarray | Pair[Ends],
    reference: tuple[str, ...] = (),
    candidate: tuple[str, ...] = (),
    sites: str = "blocks",
) -> Result:
    """One logic check, on the decoders that are loaded already: of latents, or of what two loops came to."""
    loaded_stage("reference", name, "vae", "", *reference), loaded_stage("candidate", name, "vae", "", *candidate)
    request = Request(name, parse("torch", reference), parse("torchax", candidate), stages=("vae",), sites=sites)
    loops = start if isinstance(start, Pair) else None
    given = None if isinstance(start, Pair) else {VAE_INPUT: held(start)}
    return decode_round(request, "logic", loops, given, OPENERS, lambda *_: None)[0]


@pytest.mark.parametrize("name", [HUNYUAN, COG])
def test_the_reference_is_the_pipelines_own_decode_bit_for_bit(name: str) -> None:
    x = torch.from_numpy(latents(name))
    vae = load_part(tiny(name).case.folder, "vae").eval()
    with torch.no_grad():
        if name == COG:
            pipeline = diffusers.CogVideoXPipeline.__new__(diffusers.CogVideoXPipeline)
            pipeline.__dict__.update(vae=vae, vae_scaling_factor_image=vae.config.scaling_factor)
            expected = pipeline.decode_latents(x.permute(0, 2, 1, 3, 4))
        else:
            expected = vae.decode(x / vae.config.scaling_factor, return_dict=False)[0]
    assert np.array_equal(run_stage(loaded_stage("reference", name, "vae"), {"latents": x})[0], expected.numpy())


@pytest.mark.parametrize("name", [HUNYUAN, pytest.param(COG, marks=pytest.mark.slow)])
def test_both_sides_agree_and_every_frame_is_accounted_for(name: str) -> None:
    result = decode(name, latents(name))
    assert result.verdict == "pass", result.reason
    assert [f.frame for f in result.frames] == list(range(FRAMES[name]))
    assert all(0 < f.by_itself.distance.rel_l2 < 1e-4 for f in result.frames)
    assert all(f.by_itself.distance.ratio < 3 and f.by_itself.psnr > 100 for f in result.frames)
    (stage,) = result.stages
    assert (stage.stage, stage.output) == ("vae", "frames")
    assert 0 < stage.by_itself.rel_l2 < 1e-4
    assert {d.key.stage for d in result.sites} == {"vae"}
    calls = {d.key.call for d in result.sites if d.key.module == "decoder.up_blocks.1"}
    assert calls == ({0, 1} if name == COG else {0})


@pytest.mark.parametrize("name", [HUNYUAN, pytest.param(COG, marks=pytest.mark.slow)])
def test_observing_changes_no_bit(name: str) -> None:
    stages = [loaded_stage(role, name, "vae") for role in ("reference", "candidate")]
    plan = plan_sites(["", *stages[1].modules], "blocks", trunk="decoder")
    x = {"latents": torch.from_numpy(latents(name))}
    for stage in stages:
        (seen, _), (plain, records) = run_stage(stage, x, plan), run_stage(stage, x)
        assert [r.key.site for r in records] == ["loop:frames", "loop:frames@read"]
        assert np.array_equal(seen, plain)


def test_a_fault_inside_the_decoder_has_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "decoder.up_blocks.2.resnets.0.conv1"
    params = loaded_stage("candidate", HUNYUAN, "vae").backend.params  # type: ignore[attr-defined]
    wrong = next(n for n in params if n.startswith(module) and n.endswith("weight"))
    monkeypatch.setitem(params, wrong, params[wrong] * 1.01)
    result = decode(HUNYUAN, latents(HUNYUAN))
    assert (result.verdict, result.failed) == ("fail", "logic")
    assert result.origin is not None
    assert (result.origin.key.stage, result.origin.birth) == ("vae", "module")
    assert result.origin.key.module.startswith(module)  # inside the block
    assert module in result.reason
    assert result.frames[-1].by_itself.distance.ratio > 3


@pytest.mark.slow
def test_parts_of_a_decoder_that_are_too_large_to_be_held_with_the_others_are_held_in_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "EVERYTHING", dataclasses.replace(follow.EVERYTHING, each=1 << 12))
    params = loaded_stage("candidate", HUNYUAN, "vae").backend.params  # type: ignore[attr-defined]
    for block in (1, 2):
        wrong = next(n for n in params if n.startswith(f"decoder.up_blocks.{block}.resnets.0") and n.endswith("weight"))
        monkeypatch.setitem(params, wrong, params[wrong] * 1.01)
    result = decode(HUNYUAN, latents(HUNYUAN))
    introduced = {d.key.module for d in result.sites if d.verdict == "fail" and d.birth == "module"}
    assert {"decoder.up_blocks.1", "decoder.up_blocks.2"} <= introduced


@pytest.mark.slow
def test_the_chain_is_judged_by_the_frames_of_each_sides_own_latents() -> None:
    start = latents(HUNYUAN)
    moved = start + 1e-3 * latents(HUNYUAN, seed=1)
    far, near = chain(start, moved), chain(start, moved, rounding_0=start + 1e-3 * latents(HUNYUAN, seed=2))
    result = decode(HUNYUAN, far)
    (stage,) = result.stages
    assert (result.verdict, result.failed, stage.verdict) == ("fail", "logic", "fail")
    assert "the frames of the whole chain differ by" in result.reason
    assert stage.by_itself.ratio < 3 < stage.in_chain.ratio
    assert all(f.in_chain is not None and f.in_chain.distance.rel_l2 > 1e-4 for f in result.frames)
    result = decode(HUNYUAN, near)
    assert result.verdict == "pass", result.reason
    assert 0.1 < result.stages[0].in_chain.ratio < 3


@pytest.mark.slow
def test_tiles_are_taken_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    enable = diffusers.AutoencoderKLCogVideoX.enable_tiling
    # Tiles of 4 x 5 latents in place of the class's 4 x 6: two of them, blended, of different widths.
    monkeypatch.setattr(diffusers.AutoencoderKLCogVideoX, "enable_tiling", lambda vae: enable(vae, 32, 40))
    given = latents(COG, (2, 16, 1, 2, 6))
    chosen = ("vae.tiling=true",)
    result = decode(COG, given, chosen, chosen, sites="none")
    assert result.verdict == "pass", result.reason
    assert len(result.frames) == 2
    assert all(0 < f.by_itself.distance.rel_l2 < 1e-4 for f in result.frames)
    assert loaded_stage("candidate", COG, "vae", "", *chosen).reached.marks.keys() >= {"vae.tiling"}
    x = {"latents": torch.from_numpy(given)}
    whole, tiled = (run_stage(loaded_stage("reference", COG, "vae", "", *which), x)[0] for which in ((), chosen))
    assert not np.allclose(whole, tiled, atol=1e-2)


FAULTS = [
    (HUNYUAN, "vae.attention=by_frame"), (HUNYUAN, "vae.scaling=none"),
    (HUNYUAN, "vae.attention=full"), (HUNYUAN, "vae.padding=zeros"), (HUNYUAN, "vae.padding=both_ends"),
    (COG, "vae.scaling=none"), (COG, "vae.norm=by_frame"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_on_one_side_alone_fails_and_on_both_agrees(name: str, fault: str) -> None:
    alone = decode(name, latents(name), candidate=(fault,), sites="none")
    assert (alone.verdict, alone.failed) == ("fail", "logic")
    both = decode(name, latents(name), (fault,), (fault,), sites="none")
    assert both.verdict == "pass", both.reason


@pytest.mark.parametrize("fault", ["vae.attention=by_frame", pytest.param("vae.padding=zeros", marks=pytest.mark.slow)])
def test_a_fault_of_what_a_decoder_has_not_is_no_pass(fault: str) -> None:
    with pytest.raises(InconclusiveError, match=fault.partition("=")[0]):
        decode(COG, latents(COG), (fault,), sites="none")
