"""Any diffusers transformer by class and config alone: one call (or N Euler steps) on inputs made for it.

For a class that no built-in family knows. There is no pipeline: no text encoders, no guidance, no scheduler; the
transformer's own code runs as diffusers wrote it on both sides. See `parity.models.generic.inputs` for its inputs.
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from parity.errors import InconclusiveError, ParityError, UsageError
from parity.hooks.rows import NoRows, PairedRule, RowFrame
from parity.models.family import Condition, Family, Said
from parity.models.folder import class_of, is_drawn, read_config, skeleton
from parity.models.generic.fitting import fitting
from parity.models.generic.inputs import (
    GRID,
    LATENT,
    TIMESTEP,
    Made,
    Signature,
    make_arguments,
    read_inputs,
    signature_of,
)
from parity.models.generic.rows import TEXT_FRAME, TextRows, frame_of_mask, text_mask
from parity.models.generic.sampler import EulerSampler
from parity.models.patches import DTYPES, patch_norms, patch_timestep_embedding
from parity.models.spec import Case, GenerationSpec
from parity.models.stage1 import Conditions
from parity.models.text import TextStage
from parity.reached import Reached
from parity.settings import Capability, Settings

_OWN = "the transformer's own code runs, which parity has no line for"
_NO_TEXT = "there is no text stage; its embeddings are made, or given with --inputs"
_LACKS: Mapping[Capability, str] = {
    "attention": _OWN,
    "text refiner": _OWN,
    "rotary tables": _OWN,
    "mesh": _OWN,
    "blocks": _OWN,
    "vision states": _OWN,
    "text mask": _NO_TEXT,
    "ByT5": _NO_TEXT,
    "guidance": "there is one branch and no guidance",
    "step counter": "there is no scheduler that counts steps",
}


@dataclass
class Generic(Family):
    """See `parity.models.family.Family`.

    Attributes:
        signature: of the transformer. given: the user's tensors by argument name. made: all arguments but latents and
            timestep.
    """

    signature: Signature
    given: Mapping[str, torch.Tensor]
    made: Made
    title = "a diffusers transformer by class and config"
    batches: tuple[tuple[str, ...], ...] = (("cond",),)

    @property
    def may_be_silent(self) -> bool:
        return True

    @property
    def pairs_rows(self) -> bool:
        """In which order a class joins image and text only its masks say."""
        return True

    def lacks(self, config: Mapping[str, Any]) -> Mapping[Capability, str]:
        return _LACKS

    @classmethod
    def of(cls, folder: Path, inputs: Path | None) -> Self:
        """The family of one checkpoint.

        Raises:
            UsageError: see `make_arguments` and `read_inputs`.
        """
        model = skeleton(folder, "transformer")
        signature = signature_of(class_of(folder, "transformer"), read_config(folder, "transformer"), model)
        for name in (LATENT, TIMESTEP):
            if name not in (*signature.required, *signature.optional):
                raise UsageError(
                    f"'{folder}' holds a {signature.name}, whose forward takes no '{name}': no family runs it; give "
                    "both sides as ports (--reference-port, --port)"
                )
        given = {} if inputs is None else read_inputs(inputs, signature)
        return cls(signature, given, fitting(signature, model, make_arguments(signature, given), given))

    def output_shape(self, case: Case) -> tuple[int, ...] | None:
        return None

    def static_arguments(self, case: Case) -> Mapping[str, Any]:
        return self.made.static

    def remarks(self, case: Case) -> str:
        names = [n for n in (LATENT, TIMESTEP, *self.made.tensors, *self.made.static) if n not in self.given]
        said = [f"made for {self.signature.name}: {', '.join(names)}"] if names else []
        said += [f"from --inputs: {', '.join(self.given)}"] if self.given else []
        said += [f"left out, as it cannot be called with it: {n}" for n in self.made.left_out]
        said += ["weights drawn by parameter name: the folder holds a config alone"] if is_drawn(case.folder) else []
        return "; ".join(said)

    def checks(self, case: Case, role: str) -> tuple[Said, ...]:
        return (("inputs", "pass", self.remarks(case)),) if role == "reference" else ()

    def tensors(self) -> Mapping[str, torch.Tensor]:
        return self.given

    def latent_shape(self, folder: Path, spec: GenerationSpec) -> tuple[int, ...]:
        given = self.given.get(LATENT)
        return tuple(given.shape) if given is not None else self.signature.latent_shape()

    def conditions(self, case: Case, settings: Settings, stage1: Path | None, device: torch.device) -> Conditions:
        if stage1 is not None:
            raise UsageError(f"--inputs holds embeddings of a text stage; '{case.name}' takes tensors by argument name")
        dtype = DTYPES[settings.text("dtype")]
        own = {n: x for n, x in self.made.tensors.items() if n != LATENT and not (n == TIMESTEP and x.ndim == 1)}
        return {"cond": {n: x.to(dtype) if x.is_floating_point() else x for n, x in own.items()}}

    def adapt(self, model: Any, case: Case, reached: Reached, *, traced: bool, first: Condition | None = None) -> None:
        settings = reached.settings
        patch_norms(model, settings, reached)
        patch_timestep_embedding(model, settings, reached)
        model.forward = _guarded(model.forward, self, traced and bool(settings["jit"]))

    def sampler(self, case: Case, seed: int) -> EulerSampler:
        timesteps = self.given.get(TIMESTEP)
        timesteps = timesteps if timesteps is not None and timesteps.ndim == 1 else None
        return EulerSampler(self.signature.timestep_scale, self.given.get(LATENT), timesteps)

    def text(self, case: Case) -> TextStage:
        raise UsageError(
            f"the text stage knows the encoders of HunyuanVideo-1.5 and CogVideoX; '{case.name}' takes its embeddings "
            "as inputs: leave text out of --stages"
        )

    def stage2(self, case: Case, latents: torch.Tensor) -> torch.Tensor:
        """Tokens [B, N, C] as [B, C, N, 1, 1], images as videos of one frame, [B, T, C, H, W] as [B, C, T, H, W]."""
        if self.signature.frames_first:
            return latents.transpose(1, 2)
        if latents.ndim == 3:
            return latents.transpose(1, 2)[..., None, None]
        return latents[:, :, None] if latents.ndim == 4 else latents

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        return {LATENT: latents.to(dtype), TIMESTEP: timestep}

    def row_rule(self, case: Case, settings: Settings, condition: Condition) -> PairedRule:
        mask = text_mask(condition)
        image = () if LATENT in self.given else (math.prod(GRID), math.prod(GRID[1:]))
        return NoRows() if mask is None else TextRows(mask.size, image)

    def frames(self, case: Case, settings: Settings, condition: Condition) -> dict[str, RowFrame]:
        mask = text_mask(condition)
        return {} if mask is None else {TEXT_FRAME: frame_of_mask(mask)}


def _guarded(forward: Any, family: Generic, traced: bool) -> Any:
    """The forward with its static arguments, and its failures as errors that a user can act on."""
    name = family.signature.name

    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **{**family.made.static, **kwargs})
        except ParityError:
            raise
        except Exception as error:
            where = _where(error)
            said = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
            if traced:
                raise InconclusiveError(
                    f"{name} does not trace under jax.jit: {where}: {said}; run it with --candidate jit=false, or "
                    "give a port that traces with --port"
                ) from error
            if _in_torchax(error):
                raise InconclusiveError(
                    f"{name} does not run through torchax: {where}: {said}; give a port with --port"
                ) from error
            if isinstance(error, NameError):  # diffusers imports what is optional only where it is installed
                raise UsageError(
                    f"{name} cannot run here: {where}: {said}; its code uses a package that is not installed"
                ) from error
            shapes = ", ".join(f"{n} {list(x.shape)}" for n, x in kwargs.items() if isinstance(x, torch.Tensor))
            raise UsageError(
                f"{name} cannot be called with {_source(family)} ({shapes}): {where}: {said}; give "
                "with --inputs FILE.safetensors what it takes, tensors by argument name, a number as one without axes, "
                "a list of numbers as one with as many"
            ) from error

    return guarded


def _in_torchax(error: Exception) -> bool:
    """Whether torchax's own code raised it, of a call that torch could make."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return "torchax" in Path(frame.filename).parts


def _source(family: Generic) -> str:
    """Where the inputs of a call come from, in a word or two."""
    return "the inputs made for it" if not family.given else "the inputs of --inputs and those made for it"


def _where(error: Exception) -> str:
    """The innermost line of the model's own code that an error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "diffusers" in Path(f.filename).parts]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "in its forward"
