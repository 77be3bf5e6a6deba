"""`parity explain` of a decoder whose code nobody knows: the known fault is named, and an innocent one has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.causes.stages import explain_stage
from parity.compare.result import Result
from tests.support.lab import quiet
from tests.support.ports import decoder

pytestmark = pytest.mark.slow

HUNYUAN, COG = "tiny-hunyuan-video-1.5", "tiny-cogvideox-1.5"
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


def explained(folder: Path, model: str, changes: str, decodes: str) -> Result:
    request, openers = decoder(folder, model, CLASS[model], SHAPE[model], f"frames = {decodes}", changes)
    return explain_stage(request, openers, quiet)


UNDIVIDED = "vae.decode(latents, return_dict=False)[0]"


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
def test_only_the_known_fault_of_a_port_is_named(
    model: str, changed: str, decoded: str, expected: set[str], tmp_path: Path
) -> None:
    result = explained(tmp_path, model, changed, decoded)
    assert result.verdict == ("fail" if expected else "pass")
    if expected <= {"unknown"}:
        assert result.causes == ()
        assert any(n.text.startswith("unknown: no known fault") for n in result.notes) is bool(expected)
    else:
        assert {f"{c.setting}={c.candidate}" for c in result.causes} == expected
        assert sum(c.share for c in result.causes) == pytest.approx(1.0, abs=1e-3)
        assert all(w.value == pytest.approx(1.0, abs=0.05) for c in result.causes for w in c.witnesses)
