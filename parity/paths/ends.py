"""What a loop comes to: its final latents, as they follow its steps and as the file that ports leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parity.models.stage2 import write_stage2
from parity.paths.loop import Loop
from parity.paths.plan import Ends
from parity.paths.worker.trees import array


def ends(runs: Mapping[str, Loop]) -> Ends:
    """The final latents as the VAE takes them, by run (`""`: the side's own); the modules named, what computed the
    attention, and what a port installed in vain."""
    own = runs[""].side
    seen = own.backend.seen  # what a port named so far: some names show only when it is called
    named = sorted(own.modules if seen is None else seen)
    came = {
        name: {"latents": array(loop.side.family.stage2(loop.side.case, loop.side.backend.to_torch(loop.latents)))}
        for name, loop in runs.items()
    }
    return Ends(came, tuple(named), own.backend.ran, own.family.idle)


def leave(folder: Path, loop: Loop) -> None:
    """Write a side's embeddings and final latents into a folder, in the ports' conventions."""
    side = loop.side
    side.family.write_stage1(folder / f"{side.role}_embeddings.safetensors", side.inputs.conditions)
    write_stage2(
        folder / f"{side.role}_latents.safetensors",
        side.family.stage2(side.case, side.backend.to_torch(loop.latents)),
        seed=side.inputs.seed,
        guidance_scale=side.sampler.guidance_scale,
        num_frames=side.case.spec.num_frames,
        num_inference_steps=side.inputs.steps,
    )
