"""Any diffusers transformer by class and config alone: one call (or N Euler steps) on inputs made for it.

For a class that no built-in family knows. There is no pipeline: no text encoders, no guidance, no scheduler; the
transformer's own code runs as diffusers wrote it on both sides. See `parity.models.generic_inputs` for its inputs. Its
padded text rows are known from the mask among them (`TextRows`), its loop is one branch of Euler steps along falling
timesteps (`EulerSampler`).
"""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from parity.errors import InconclusiveError, ParityError, UsageError, summary
from parity.hooks.rows import SEQUENCE, WHOLE, MaskedRows, Part, RowFrame, RowRule
from parity.models.family import Condition, Family, Place, Said, Sampler
from parity.models.folder import Case, GenerationSpec, class_of, is_drawn, read_config, skeleton
from parity.models.generic_inputs import (
    GRID,
    LATENT,
    TIMESTEP,
    Made,
    Signature,
    fitting,
    make_arguments,
    read_inputs,
    signature_of,
)
from parity.models.patches import DTYPES, patch_norms, patch_timestep_embedding
from parity.models.stage_files import Conditions
from parity.models.text import row_frame, valid_of
from parity.settings import Capability, Reached, Settings

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
    is_known = False

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

    @property
    def channels(self) -> int:
        return 2 if self.signature.frames_first else 1

    def pipeline_arguments(self, case: Case) -> Mapping[str, Any]:
        return self.made.static

    def checks(self, case: Case) -> tuple[Said, ...]:
        names = [n for n in (LATENT, TIMESTEP, *self.made.tensors, *self.made.static) if n not in self.given]
        said = [f"made for {self.signature.name}: {', '.join(names)}"] if names else []
        said += [f"from --inputs: {', '.join(self.given)}"] if self.given else []
        said += [f"left out, as it cannot be called with it: {n}" for n in self.made.left_out]
        said += ["weights drawn by parameter name: the folder holds a config alone"] if is_drawn(case.folder) else []
        found: list[Said] = [("inputs", "pass", "; ".join(said))]
        known = {*self.made.tensors, *self.made.static, *self.given}
        if rotary := [n for n in self.signature.optional if "rotary" in n and n not in known]:
            without = "is given to neither side, as parity cannot make it: where tokens stand is not compared"
            advice = "record a pipeline, or compare calls with parity.compare"
            found.append(("positions", "explained", f"{', '.join(rotary)} {without}; {advice}"))
        return tuple(found)

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

    def rows(self, case: Case, settings: Settings, condition: Condition) -> tuple[RowRule, Mapping[str, RowFrame]]:
        masks = text_masks(condition)
        text = masks[""].size if "" in masks else 0
        alone = MaskedRows(inside=padding_of(condition) is None)
        rule = TextRows(text, self._image_tokens(text)) if text else alone
        return rule, {f"{TEXT_FRAME}{which}": frame_of_mask(mask) for which, mask in masks.items()}

    def _image_tokens(self, text: int) -> tuple[int, ...]:
        """What the number of image tokens may be; empty where a further video is given, which may be joined to it."""
        if LATENT not in self.given:
            return math.prod(GRID), math.prod(GRID[1:])
        videos = [n for n, x in self.given.items() if x.ndim > 3 and x.numel() > 1 and x.is_floating_point()]
        if videos:
            alone = videos == [LATENT] or (len(videos) == 1 and self.given[LATENT].numel() == 1)  # a function's own
            return self.signature.tokens(self.given[videos[0]]) if alone else ()
        return tuple(x.shape[1] for x in self.given.values() if x.ndim == 3 and x.shape[1] != text)


MASKS = ("encoder_attention_mask", "encoder_hidden_states_mask")
"""Arguments that diffusers' transformers call the text's mask."""

TEXT_FRAME = "text"
_WORDS = ("context", "text", "txt", "caption", "encoder_hidden_states", "add_")


@dataclass(frozen=True, slots=True)
class TextRows:
    """Tensors [B, rows, ...] of as many rows as the text has are text; see `parity.hooks.rows.RowRule`.

    In which order a family joins image and text is unknown, so joint sequences are compared whole; where a mask of so
    many rows was given, it says which of them are read.

    Attributes:
        text: tokens. image: what the number of image tokens may be; empty where that is not known. Where it may be the
            text's, names decide.
    """

    text: int
    image: tuple[int, ...] = ()

    def parts(self, module: str, port: str, shape: Sequence[int], masked: Collection[int] = ()) -> tuple[Part, ...]:
        if len(shape) < 3 or "mask" in port:
            return WHOLE
        rows, said = shape[1], any(word in f"{module}.{port}" for word in _WORDS)
        if rows > self.text and rows in masked:
            return SEQUENCE
        is_text = rows == self.text or (rows < self.text and rows in masked)
        # What a joint mask covers beside the text is the image; without one, what the video may be made of.
        image = tuple(n - self.text for n in masked if n > self.text) or self.image
        certain = bool(image) and rows not in image
        return (Part(frame=TEXT_FRAME),) if is_text and (said or certain) else WHOLE


def text_masks(condition: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """bool [tokens], True where a token is valid, of each text: the one is called `""`, others as `_2`. Without those
    that have no mask, or none that leaves a token out."""
    named = {name.removeprefix("in."): x for name, x in condition.items()}  # of a function's arguments, see `face`
    text = next((name for name in MASKS if name in named), "")
    given = {n.removeprefix(text): x for n, x in named.items() if text and n.startswith(text) and x.ndim == 2}
    masks = {which: valid_of(x) for which, x in given.items()}
    return {which: valid for which, valid in masks.items() if not valid.all()}


def padding_of(given: Mapping[str, torch.Tensor]) -> np.ndarray | None:
    """bool [B, rows], True for the tokens that a text encoder's `attention_mask` leaves out.

    None without token ids of the mask's shape, where nothing is left out, and where an item has no token left.
    """
    named = {name.removeprefix("in."): x for name, x in given.items()}
    mask = named.pop("attention_mask", None)
    ids = (name for name, x in named.items() if "ids" in name and not x.is_floating_point() and x.dtype != torch.bool)
    if mask is None or mask.ndim != 2 or not any(named[name].shape == mask.shape for name in ids):
        return None
    left = np.asarray(mask.detach().cpu().to(torch.float32).numpy() <= 0)
    return left if left.any() and not left.all(1).any() else None


def frame_of_mask(valid: np.ndarray) -> RowFrame:
    """The frame in which the valid tokens stand first."""
    order = np.argsort(~valid, kind="stable")
    return row_frame(valid[order], order)


FIRST = 0.99601
"""The first sigma: bfloat16 holds neither it nor 996.01, nor half of them, so a port that rounds timesteps is seen. It
holds 996, so near that a model which rounds them itself, as Flux does, moves no further than by its dtype."""


SHIFT = 3.0
"""Of the sigmas: no two steps are equally long, so a port that takes another step's length is seen."""


class EulerSampler(Sampler):
    """See `parity.models.family.Sampler`.

    Sigmas fall from `FIRST` to zero, shifted as flow matching shifts them. A prediction of another shape than the
    latents' leaves them as they are.

    Args:
        scale: of the timesteps. start_at: latents in place of the noise. timesteps: in place of the made ones.
    """

    guidance_scale = 1.0
    sigmas = torch.empty(0)

    def __init__(
        self, scale: float, start_at: torch.Tensor | None = None, timesteps: torch.Tensor | None = None
    ) -> None:
        self.scale, self.start_at, self.given = scale, start_at, timesteps
        self.place: Place = lambda x: x

    def set_schedule(self, steps: int, device: Any, place: Place, dtype: torch.dtype | None) -> None:
        if self.given is not None and len(self.given) != steps:
            count = len(self.given)
            raise UsageError(f"the inputs hold {count} timesteps for --steps {steps}: give --steps {count}")
        if self.given is None:
            even = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64)
            sigmas = FIRST * SHIFT * even / (1.0 + (SHIFT - 1.0) * even)
        else:
            sigmas = torch.cat([self.given.double() / self.scale, torch.zeros(1, dtype=torch.float64)])
        sigmas = sigmas.float() if dtype is None else sigmas.to(dtype)
        self.place, self.sigmas = place, place(sigmas)
        self.timesteps = place(sigmas[:-1] * self.scale)

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        return noise if self.start_at is None else self.place(self.start_at).to(noise.dtype)

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        return predictions["cond"]

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        if guided.shape != latents.shape:
            return latents
        return latents + (self.sigmas[step + 1] - self.sigmas[step]).to(latents.dtype) * guided


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
            kind: type[ParityError] = InconclusiveError
            if traced:
                what = "does not trace under jax.jit"
                advice = "run it with --candidate jit=false, or give a port that traces with --port"
            elif "torchax" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts:  # not the model's own
                what, advice = "does not run through torchax", "give a port with --port"
            elif isinstance(error, NameError):  # diffusers imports what is optional only where it is installed
                kind, what, advice = UsageError, "cannot run here", "its code uses a package that is not installed"
            else:
                source = "the inputs of --inputs and those made for it" if family.given else "the inputs made for it"
                shapes = ", ".join(f"{n} {list(x.shape)}" for n, x in kwargs.items() if isinstance(x, torch.Tensor))
                kind, what = UsageError, f"cannot be called with {source} ({shapes})"
                advice = (
                    "give with --inputs FILE.safetensors what it takes, tensors by argument name, a number as one "
                    "without axes, a list of numbers as one with as many"
                )
            raise kind(f"{name} {what}: {_where(error)}: {summary(error)}; {advice}") from error

    return guarded


def _where(error: Exception) -> str:
    """The innermost line of the model's own code that an error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "diffusers" in Path(f.filename).parts]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "in its forward"
