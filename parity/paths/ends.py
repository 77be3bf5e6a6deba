"""What a loop comes to: its final latents, as records of a stream and as the file that ports leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from parity.hooks.reduce.transfer import to_numpy
from parity.models.stage_files import write_stage2
from parity.paths.loaded import STAGE
from parity.paths.loop import Loop
from parity.paths.plan import ENDS, IDLE, NAMES, RAN
from parity.records import LOOP, Key, Record, StepRecords
from parity.sketch import value_record


def ends(runs: Mapping[str, Loop]) -> StepRecords:
    """The final latents [B, C, T, H, W] as the VAE takes them, by run (`""`: the side's own); the modules named, what
    computed the attention, and what a port installed in vain."""
    own = runs[""].side
    seen = own.backend.seen  # what a port named so far: some names show only when it is called
    named = sorted(own.modules if seen is None else seen)

    def record(name: str, at: Loop) -> Record:
        side = at.side
        x = side.family.stage2(side.case, side.backend.to_torch(at.latents))
        return value_record(Key(STAGE, ENDS, name, f"{LOOP}:latents"), to_numpy(x), str(x.dtype).removeprefix("torch."))

    ran = "\n".join(f"{site}={function}" for site, function in own.backend.ran.items())
    texts = {NAMES: ",".join(named), RAN: ran, IDLE: "\n".join(own.family.idle)}
    said = (Record(Key(STAGE, ENDS, "", f"{LOOP}:{port}"), "scalar", value=text) for port, text in texts.items())
    return StepRecords(ENDS, (*(record(name, at) for name, at in runs.items()), *said))


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
