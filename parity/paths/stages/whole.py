"""What takes a stage's place as a whole: it gives outputs, and shows nothing of how.

The candidate of a text stage may be a file: a port's embeddings, as its first stage wrote them. The VAE may be that of
a port: its own decoder in the candidate's place, called with the latents that the reference decodes. What that computes
inside is not observed: a port's decoder is a function (Flax, JAX, torchax, frame by frame or whole). Its frames are,
each by itself and in the chain, against the reference's with their floors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.hooks.reduce.transfer import to_numpy, widen16
from parity.hooks.sites import SitePlan
from parity.models.spec import Case
from parity.paths.plan import VAE_STAGE
from parity.paths.port.load import Entry
from parity.paths.port.ported import built, guarded, moved
from parity.paths.stages.stage import Inputs, Seen, Stage
from parity.port import Port
from parity.reached import Reached
from parity.settings import SETTINGS, Settings, parse


class Whole:
    """A runner without modules or weights; who extends it says what `run` gives. See
    `parity.paths.stages.stage.TorchStage`.

    Args:
        stage: whose place it takes.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.reached = Reached(parse("torchax"), stage.name)
        self.modules: dict[str, str] = {}

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        return iter(())


class HeldStage(Whole):
    """Gives back what it holds, whatever it is given.

    Args:
        stage: with the rows of the file's own masks. held: branch -> output by name, on the CPU.
    """

    def __init__(self, stage: Stage, held: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        super().__init__(stage)
        self.held = held

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        held = {k: (to_numpy(x), str(x.dtype).removeprefix("torch.")) for k, x in self.held[branch].items()}
        return self.stage.seen(held, branch)


def held_dtype(tensors: list[torch.Tensor]) -> str:
    """The coarsest dtype that holds these values exactly, whatever they are stored as: what they were computed in, or
    rounded to at the end."""
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        if all(torch.equal(x.to(dtype).to(torch.float32), x.to(torch.float32)) for x in tensors):
            return name
    return "float32"


_RANK = 5
"""Of latents and frames, [B, C, T, H, W]."""


class PortDecoder(Whole):
    """Calls a port's `vae`.

    Args:
        stage: of the decoder. entry, port: with a `vae`.
    """

    def __init__(self, stage: Stage, entry: Entry, port: Port) -> None:
        super().__init__(stage)
        self.entry, self.port = entry, port

    def run(self, inputs: Inputs, plan: SitePlan | None, branch: str = "") -> Seen:
        """Raises UsageError where it raises, or gives something else than frames [B, 3, T, H, W]."""
        assert self.port.vae is not None
        latents: Any = inputs["latents"]
        if self.port.runs == "jax":
            from parity.paths.jax.tracing import to_jax  # jax, for a port that has it

            latents = to_jax(latents)
        with guarded(self.entry, "vae"), torch.no_grad():
            out = self.port.vae(moved(latents, self.port, _RANK, 1, -1))
        values, dtype = _host(out)
        values = np.moveaxis(values, -1, 1) if self.port.layout == "channels_last" and values.ndim == _RANK else values
        if values.ndim != _RANK or values.shape[1] != 3:
            raise UsageError(
                f"{self.entry.named}: `vae` gave {dtype} {list(values.shape)}; expected frames [B, 3, T, H, W], some "
                "-1 to 1 (channels last where the port's layout says so)"
            )
        return self.stage.seen({"frames": (values, dtype)}, branch)


def decoder_of(stage: Stage, entry: Entry, case: Case, settings: Settings) -> PortDecoder | None:
    """The decoder that a port brings; None where it brings none.

    Raises:
        UsageError: the port cannot be built, or a setting of the VAE is given, which is the port's own business.
    """
    port, _ = built(entry, "candidate", case, settings, lambda name: None)
    if port.vae is None:
        return None
    for setting in SETTINGS:
        if setting.places == (VAE_STAGE,) and settings.changed(setting.name):
            own = f"{setting.name} is a setting of parity's own VAE, and {entry.named} brings its own"
            raise UsageError(f"{own}: leave it out")
    return PortDecoder(stage, entry, port)


def _host(x: Any) -> tuple[np.ndarray, str]:
    """A tensor's or array's values on the host, 16-bit floats as float32, and its dtype's name."""
    if isinstance(x, torch.Tensor) and not hasattr(x, "jax"):
        return to_numpy(x), str(x.dtype).removeprefix("torch.")
    array = np.asarray(x.jax() if hasattr(x, "jax") else x)
    return widen16(array), str(array.dtype)
