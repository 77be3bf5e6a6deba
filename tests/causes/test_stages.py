"""`parity explain` outside the loop: the setting is named, or the known fault of a decoder whose code nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

import diffusers
import pytest

from parity.causes.request import of_run
from parity.causes.stages import explain_stage
from parity.compare.reason import UNKNOWN, Note, Reason
from parity.compare.result import Cause, Origin, Result, StageDiff, Verdict, result_text
from parity.paths.plan import Openers
from parity.records import Key
from parity.runs.request import Request
from parity.settings import parse
from tests.paths.stages import OPENERS
from tests.runs.test_spec import PLAIN
from tests.support.lab import quiet
from tests.support.ports import decoder, stage2

COG = "tiny-cogvideox-1.5"


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 x 5 latents in place of the class's 4 x 6, so that latents of 2 x 6 are more than one."""
    enable = diffusers.AutoencoderKLCogVideoX.enable_tiling
    monkeypatch.setattr(diffusers.AutoencoderKLCogVideoX, "enable_tiling", lambda vae: enable(vae, 32, 40))


Told = tuple[list[Cause], list[str]]
"""Causes, and the texts of notes."""


def told(request: Request, openers: Openers) -> Told:
    found = [*explain_stage(request, openers, quiet)]
    return [t for t in found if isinstance(t, Cause)], [t.text for t in found if isinstance(t, Note)]


def explained(latents: Path, *candidate: str) -> Told:
    chosen = parse("torchax", candidate)
    request = Request(COG, parse("torch"), chosen, stages=("vae",), stage2=latents, sites="none")
    return told(request, OPENERS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "causes"),
    [
        (["vae.tiling=true"], ["vae.tiling"]),
        (["vae.tiling=true", "matmul_precision=high"], ["vae.tiling"]),  # what only rounds is no cause of another fault
        ([], []),
    ],
)
def test_decoders_setting_is_the_cause(tiles: None, tmp_path: Path, candidate: list[str], causes: list[str]) -> None:
    found, notes = explained(stage2(tmp_path, 1, 16, 1, 2, 6, frames=1), *candidate)
    assert any("agrees on this machine" in note for note in notes) is not bool(causes)
    assert [c.setting for c in found] == causes
    assert sum(c.share for c in found) == pytest.approx(len(causes), abs=1e-3)


REQUEST = {
    **json.loads(PLAIN.to_json()), "model": COG, "stages": ["text", "transformer", "vae"],
    "candidate": ["vae.tiling=true"], "steps": 3, "seed": 4,
}  # fmt: skip


def kept(folder: Path, request: dict[str, object], verdicts: dict[str, Verdict], origin: str | None) -> Path:
    why = Reason(kind="agrees")
    found = Result(
        "fail" if "fail" in verdicts.values() or origin else "pass",
        None,
        why,
        stages=tuple(StageDiff(name, "out", UNKNOWN, UNKNOWN, verdict, why) for name, verdict in verdicts.items()),
        origin=None if origin is None else Origin(Key(origin, 0, "", "out"), "module"),
    )
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "found.json").write_text(result_text(found))
    (folder / "reference").mkdir()
    return folder


@pytest.mark.parametrize(
    ("verdicts", "origin", "expected"),
    [
        ({"text": "pass", "vae": "fail"}, "vae", ["vae"]),
        ({"text": "fail"}, "text", ["text"]),
        ({"text": "fail", "vae": "fail"}, "text", ["text", "vae"]),
        ({"text": "pass", "vae": "fail"}, "transformer", ["vae"]),
        ({"text": "pass", "vae": "pass"}, None, []),
    ],
)
def test_a_kept_run_is_explained_in_every_stage_that_failed(
    verdicts: dict[str, Verdict], origin: str | None, expected: list[str], tmp_path: Path
) -> None:
    request = of_run(kept(tmp_path, REQUEST, verdicts, origin), OPENERS)
    assert [pair.stage for pair in request.outside] == expected
    assert all((pair.steps, pair.seed) == (3, 4) and pair.candidate["vae.tiling"] is True for pair in request.outside)
    # What confirms a cause of the loop leaves out the stages that fail by themselves, with their settings.
    assert request.spec is not None
    assert not set(expected) & set(request.spec.stages)
    assert ("vae.tiling=true" in request.spec.candidate) is ("vae" not in expected)


def test_the_latents_that_the_run_kept_are_decoded_again(tmp_path: Path) -> None:
    folder = kept(tmp_path, REQUEST, {"vae": "fail"}, None)
    (folder / "reference_latents.safetensors").write_bytes(b"")
    (found,) = of_run(folder, OPENERS).outside
    assert found.stage2 == folder / "reference_latents.safetensors"


# --- a decoder whose code nobody knows

HUNYUAN = "tiny-hunyuan-video-1.5"
CLASS = {HUNYUAN: "AutoencoderKLHunyuanVideo15", COG: "AutoencoderKLCogVideoX"}
SHAPE = {HUNYUAN: (1, 32, 4, 2, 2), COG: (1, 16, 5, 2, 3)}
DIVIDED = "vae.decode(latents / vae.config.scaling_factor, return_dict=False)[0]"

BY_FRAME = """
    def one_frame(block):
        def forward(x):
            n = block.norm(x)
            b, c, t, h, w = n.shape
            q, k, v = (
                f(n).permute(0, 2, 3, 4, 1).reshape(b * t, h * w, c) for f in (block.to_q, block.to_k, block.to_v)
            )
            seen = torch.softmax(q @ k.transpose(1, 2) * c**-0.5, -1) @ v
            return block.proj_out(seen.reshape(b, t, h, w, c).permute(0, 4, 1, 2, 3)) + x

        block.forward = forward

    for block in vae.decoder.modules():
        if hasattr(block, "prepare_causal_attention_mask"):
            one_frame(block)
"""


NORM_BY_FRAME = """
    class PerFrame(torch.nn.GroupNorm):
        def forward(self, x):
            frames = [super(PerFrame, self).forward(x[:, :, i]) for i in range(x.shape[2])]
            return torch.stack(frames, 2)

    for module in vae.decoder.modules():
        if type(module) is torch.nn.GroupNorm:
            module.__class__ = PerFrame
"""

ZEROS = """
    for module in vae.decoder.modules():
        if hasattr(module, "pad_mode"):
            module.pad_mode = "constant"
"""

ANOTHER = """
    conv = vae.decoder.conv_in.conv
    conv.weight = torch.nn.Parameter(conv.weight * 1.1)
"""


def of_port(folder: Path, model: str, changes: str, decodes: str) -> Told:
    request, openers = decoder(folder, model, CLASS[model], SHAPE[model], f"frames = {decodes}", changes)
    return told(request, openers)


UNDIVIDED = "vae.decode(latents, return_dict=False)[0]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "changed", "decoded", "expected"),
    [
        (HUNYUAN, BY_FRAME, DIVIDED, {"vae.attention=by_frame"}),
        (HUNYUAN, ZEROS, DIVIDED, {"vae.padding=zeros"}),
        (HUNYUAN, "", UNDIVIDED, {"vae.scaling=none"}),
        (HUNYUAN, BY_FRAME, UNDIVIDED, {"vae.scaling=none", "vae.attention=by_frame"}),
        (COG, NORM_BY_FRAME, DIVIDED, {"vae.norm=by_frame"}),
        (HUNYUAN, "", DIVIDED, set()),  # a right decoder
        (HUNYUAN, ANOTHER, DIVIDED, {"unknown"}),
    ],
)
def test_known_fault_is_named(model: str, changed: str, decoded: str, expected: set[str], tmp_path: Path) -> None:
    causes, notes = of_port(tmp_path, model, changed, decoded)
    assert any("agrees on this machine" in note for note in notes) is not bool(expected)
    if expected <= {"unknown"}:
        assert causes == []
        assert any(note.startswith("unknown: no known fault") for note in notes) is bool(expected)
    else:
        assert {f"{c.setting}={c.candidate}" for c in causes} == expected
        assert [c.share for c in causes] == pytest.approx([1.0] * len(expected), abs=1e-3)
        assert all(w.value == pytest.approx(1.0, abs=0.05) for c in causes for w in c.evidence)
