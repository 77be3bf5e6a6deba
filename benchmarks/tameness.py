"""Are the tiny checkpoint's random weights wild enough to show a fault, and calm enough to be compared?

A freshly initialised transformer hides faults: its gates are near zero, its attention is uniform, its activations
shrink. One with too large weights is chaotic: rounding alone makes the outputs of two innocent programs part. This
runs one forward a branch, on the CPU, and measures both sides of that:

- rms of both streams (image, text) behind every block: of order one;
- attention: the largest probability of a query row, averaged over the valid rows and heads, times the number of valid
  keys (1 is uniform), and the entropy over its maximum (1 is uniform);
- noise_pred: its rms, and by how much it moves (relative L2) when the joint attention's mask is dropped;
- growth: relative change of noise_pred over that of the inputs (latents and embeddings), and the distance of the
  float32 noise_pred from one in float64.

    python benchmarks/tameness.py [--model tiny-hunyuan-video-1.5]

Cost: some seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from parity.models.hunyuan_video_15.family import HunyuanVideo15
from parity.models.registry import resolve_model, tiny_names
from parity.models.spec import Case, GenerationSpec
from parity.settings import parse

Sdpa = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """What one block does.

    Attributes:
        name: of the module.
        rms: of its outputs, valid rows only: (image, text) for a joint block, (text,) for a refiner block.
        gain: relative change of each stream by the block, in the order of `rms`.
        peak: largest attention probability of a row times the number of valid keys, mean over rows and heads.
        entropy: of the attention over the logarithm of the number of valid keys, mean over rows and heads.
    """

    name: str
    rms: tuple[float, ...]
    gain: tuple[float, ...]
    peak: float
    entropy: float


@dataclasses.dataclass(frozen=True, slots=True)
class Tameness:
    """One branch's figures, as the module's docstring names them.

    Attributes:
        blocks: refiner blocks, then joint blocks.
        noise_pred_rms: of the transformer's output.
        without_mask: relative L2 change of it by dropping the joint attention's mask.
        without_refiner_mask: likewise by dropping the refiner's.
        growth: relative change of noise_pred over a relative change of 1e-4 of its inputs.
        growth_1e7: relative change of noise_pred where the inputs change by 1e-7, rounding included.
        float64: relative L2 distance of noise_pred in float32 from that in float64.
    """

    blocks: tuple[Block, ...]
    noise_pred_rms: float
    without_mask: float
    without_refiner_mask: float
    growth: float
    growth_1e7: float
    float64: float


def measure(folder: pathlib.Path, branch: str = "cond", timestep: float = 1000.0, seed: int = 0) -> Tameness:
    """Measure one branch of a HunyuanVideo-1.5 checkpoint in float32 on the CPU.

    Args:
        folder: checkpoint with a `parity.json`.
        branch: `cond` or `uncond`.
        timestep: in the scheduler's units, 1000 for pure noise.
        seed: of the latents and of the perturbation.
    """
    model, inputs = load(folder, branch, timestep, seed)
    with torch.no_grad():
        blocks, noise_pred = _observe_blocks(model, inputs)
        tokens = inputs["encoder_hidden_states"].shape[1]

        def joint(query: torch.Tensor) -> bool:
            return query.shape[2] > tokens

        with _attention(lambda sdpa, q, k, v, mask: sdpa(q, k, v, attn_mask=None if joint(q) else mask)):
            without_mask = relative_l2(_forward(model, inputs), noise_pred)
        with _attention(lambda sdpa, q, k, v, mask: sdpa(q, k, v, attn_mask=mask if joint(q) else None)):
            without_refiner_mask = relative_l2(_forward(model, inputs), noise_pred)
        growth = relative_l2(_forward(model, _perturbed(inputs, 1e-4, seed)), noise_pred) / 1e-4
        growth_1e7 = relative_l2(_forward(model, _perturbed(inputs, 1e-7, seed)), noise_pred)
        exact = _forward(model.double(), {key: value.double() for key, value in inputs.items()})
    return Tameness(
        blocks=blocks,
        noise_pred_rms=rms(noise_pred),
        without_mask=without_mask,
        without_refiner_mask=without_refiner_mask,
        growth=growth,
        growth_1e7=growth_1e7,
        float64=relative_l2(noise_pred.double(), exact),
    )


def load(folder: pathlib.Path, branch: str, timestep: float, seed: int) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return the transformer and the arguments of its first call in a generation, as the pipeline makes them."""
    import diffusers

    spec = GenerationSpec.load(folder)
    case = Case(folder.name, folder, {}, spec, ())
    conditions = HunyuanVideo15().conditions(case, parse("torch"), None, torch.device("cpu"))
    model = diffusers.HunyuanVideo15Transformer3DModel.from_pretrained(folder, subfolder="transformer").eval()
    shape = (1, 32, (spec.num_frames - 1) // 4 + 1, spec.height // 16, spec.width // 16)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    inputs = {
        "hidden_states": torch.cat([latents, torch.zeros_like(latents), torch.zeros_like(latents[:, :1])], dim=1),
        "timestep": torch.tensor([timestep]),
        "image_embeds": torch.zeros(1, spec.vision_num_semantic_tokens, model.config.image_embed_dim),
        **conditions[branch],
    }
    return model, inputs


def rms(tensor: torch.Tensor) -> float:
    """Return the root mean square of a tensor, accumulated in float64."""
    return float(tensor.double().square().mean().sqrt())


def relative_l2(tensor: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the L2 norm of the difference over that of the reference."""
    return float((tensor.double() - reference.double()).norm() / reference.double().norm())


def _forward(model: torch.nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    return model(**inputs, return_dict=False)[0]


def _perturbed(inputs: dict[str, Any], size: float, seed: int) -> dict[str, Any]:
    """Return the inputs with latents and embeddings multiplied by 1 plus or minus `size`, element by element."""
    generator = torch.Generator().manual_seed(seed + 1)
    moved = dict(inputs)
    for key in ("hidden_states", "encoder_hidden_states", "encoder_hidden_states_2"):
        signs = torch.randint(0, 2, inputs[key].shape, generator=generator) * 2 - 1
        moved[key] = (inputs[key] * (1 + size * signs.double())).to(inputs[key].dtype)
    return moved


@contextlib.contextmanager
def _attention(call: Callable[[Sdpa, torch.Tensor, torch.Tensor, torch.Tensor, Any], torch.Tensor]) -> Iterator[None]:
    """Route every scaled_dot_product_attention through `call(original, query, key, value, mask)`."""
    original = torch.nn.functional.scaled_dot_product_attention

    def routed(query: Any, key: Any, value: Any, attn_mask: Any = None, **_: Any) -> torch.Tensor:
        return call(original, query, key, value, attn_mask)

    torch.nn.functional.scaled_dot_product_attention = routed  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = original


def _observe_blocks(model: Any, inputs: dict[str, Any]) -> tuple[tuple[Block, ...], torch.Tensor]:
    """Run one forward and return every block's figures and the noise prediction."""
    attended: list[tuple[float, float]] = []
    streams: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    valid_text = int(inputs["encoder_attention_mask"].sum())
    valid_joint = valid_text + int(inputs["encoder_attention_mask_2"].sum())

    def attend(sdpa: Sdpa, query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
        attended.append(_peak_and_entropy(query, key, mask))
        return sdpa(query, key, value, attn_mask=mask)

    def seen(module: Any, args: tuple[Any, ...], output: Any) -> None:
        # A joint block gives (image, text) with valid text first; a refiner block gives text, padded on the right.
        joint = isinstance(output, tuple)
        before = (args[0], args[1][:, :valid_joint]) if joint else (args[0][:, :valid_text],)
        after = (output[0], output[1][:, :valid_joint]) if joint else (output[:, :valid_text],)
        gains = tuple(relative_l2(new, old) for new, old in zip(after, before, strict=True))
        streams.append((tuple(rms(stream) for stream in after), gains))

    refiner = model.context_embedder.token_refiner.refiner_blocks
    names = [f"refiner_blocks.{index}" for index in range(len(refiner))]
    names += [f"transformer_blocks.{index}" for index in range(len(model.transformer_blocks))]
    handles = [block.register_forward_hook(seen) for block in (*refiner, *model.transformer_blocks)]
    try:
        with _attention(attend):
            noise_pred = _forward(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    blocks = tuple(
        Block(name, *stream, *attention) for name, stream, attention in zip(names, streams, attended, strict=True)
    )
    return blocks, noise_pred


def _peak_and_entropy(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
    """Return the mean largest probability times the valid keys, and the mean entropy over its maximum."""
    valid = mask[0, 0].any(dim=-1)
    query, key = query[:, :, valid].double(), key[:, :, valid].double()
    weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), dim=-1)
    keys = weights.shape[-1]
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1)
    return float(weights.amax(-1).mean()) * keys, float(entropy.mean()) / math.log(keys)


def main() -> None:
    """Print the table for both branches at the first and at a late timestep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    hunyuan = [name for name in tiny_names() if "hunyuan" in name]  # CogVideoX has no masks to drop
    parser.add_argument("--model", choices=hunyuan, default=hunyuan[0])
    folder = resolve_model(parser.parse_args().model)
    for branch in ("cond", "uncond"):
        for timestep in (1000.0, 300.0):
            found = measure(folder, branch, timestep)
            print(f"\n{branch}, timestep {timestep:g}")
            print(f"{'block':22}{'rms (image, text)':>20}{'change by block':>20}{'peak x keys':>14}{'entropy':>10}")
            for block in found.blocks:
                size = "  ".join(f"{value:.2f}" for value in block.rms)
                gain = "  ".join(f"{value:.2f}" for value in block.gain)
                print(f"{block.name:22}{size:>20}{gain:>20}{block.peak:14.1f}{block.entropy:10.3f}")
            print(f"noise_pred rms {found.noise_pred_rms:.2f}")
            print(f"without the joint mask {found.without_mask:.3f}, the refiner's {found.without_refiner_mask:.3f}")
            print(f"growth {found.growth:.2f}; of 1e-7: {found.growth_1e7:.1e}; from float64: {found.float64:.1e}")


if __name__ == "__main__":
    main()
