"""Inputs for a transformer that nobody wrote a line for: made from its forward's signature and its config.

A table says, for each argument name that diffusers' transformers share, how to make it (`ARGUMENTS`). Required
arguments are made, and optional ones that the table knows and the config asks for; other optional ones keep their
default. A required argument that nobody knows is an error that names it: give it, and any other, with
`--inputs FILE.safetensors`, tensors by argument name, which always take precedence.

What the table makes is what most classes take: a text mask [1, tokens]. Some take their optional arguments otherwise
(Latte folds its frames into the batch and its mask not), and then no call succeeds. So the transformer without its
weights is called once on torch's meta device, where a call computes shapes alone (`fitting`). If it fails, and succeeds
without one of the optional arguments, that one is left out, and the check `inputs` says so. A class that cannot run
there at all keeps everything.

Sizes are small: a latent of 2 x 4 x 6 patches, 16 text tokens of which 12 are valid where there is a mask. Values are
normal, drawn by argument name, so that adding an argument changes no other.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.models.embeddings import Timesteps

from parity.errors import UsageError
from parity.models.stage_files import MASKS, StageFile, check_finite
from parity.models.tiny import seeded

TEXT, VALID = 16, 12
"""Text tokens, and those of them that a mask lets through."""

LATENT, TIMESTEP = "hidden_states", "timestep"
GRID = (2, 4, 6)
"""Patches of the latent along time, height, width."""

TEXT_WIDTHS = (
    "text_dim", "caption_channels", "joint_attention_dim", "text_embed_dim", "cap_feat_dim", "in_text_dim",
    "encoder_hidden_size", "cross_attention_dim",
)  # fmt: skip
"""Config keys that hold the width of the text embeddings, the first that is there counts."""

_PACKED = ("img_ids", "img_shapes", "num_frames")
"""Arguments of transformers whose latents come as tokens [B, tokens, channels], patches already cut."""

_SCALED_TIMESTEP = re.compile(r"timestep\w*(\.to\([^)]*\))?\s*\*\s*1000")
_FRAMES_FIRST = re.compile(
    r"\bnum_frames, (num_)?channels, height, width = hidden_states\.shape"
    r"|\bhidden_states = hidden_states\.permute\(0, 2, 1, 3, 4\)\s+batch_size, (num_)?channels, num_frames, "
)
"""How a forward that takes videos as [B, T, C, H, W] reads their shape."""

_TEXT_FIXED = re.compile(r"encoder_hidden_states\.shape\[1\] - (\d+)")
"""How an attention to an image and a text behind it, as Wan's, reads where the text begins: it has so many tokens."""

_LISTS = re.compile(r"(typing\.)?(list|tuple)\b(?!.*Tensor)", re.IGNORECASE)
"""The annotation of a parameter that takes numbers in lists: `typing.List[int]`, `tuple[int, int, int] | None`."""

Config = Mapping[str, Any]
Static = int | float | list[Any]
"""An argument that is no tensor: the same in every call, part of the compiled program."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a transformer's class and config say about its call.

    Attributes:
        name: of the class. config: of the checkpoint, with the class's own defaults for what it leaves out.
        required, optional: names of forward's parameters.
        timestep_scale: 1000, or 1 where the model multiplies by 1000 itself.
        frames_first: whether videos are [B, T, C, H, W] and not [B, C, T, H, W].
        listed: parameters that take lists or tuples of numbers, and no tensors. text: tokens of the text.
    """

    name: str
    config: Config
    required: tuple[str, ...]
    optional: tuple[str, ...]
    timestep_scale: float
    frames_first: bool = False
    listed: frozenset[str] = frozenset()
    text: int = TEXT

    @property
    def packed(self) -> bool:
        return any(name in self.required + self.optional for name in _PACKED)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Sizes of the latent along time, height, width, before any packing; images have one frame."""
        if self.packed:
            return GRID if "num_frames" in self.required + self.optional else (1, *GRID[1:])
        t, h, w = (n * size for n, size in zip(GRID, self.patch, strict=True))
        return t, h, w

    @property
    def patch(self) -> tuple[int, ...]:
        """What of the latent is one token, along time, height, width."""
        patch = self.config.get("patch_size", 1)
        sizes = (
            tuple(patch) if isinstance(patch, (list, tuple)) else (self.config.get("patch_size_t") or 1, patch, patch)
        )
        return tuple(int(size or 1) for size in (1, *sizes)[-3:])

    def tokens(self, latents: torch.Tensor) -> tuple[int, ...]:
        """How many tokens a video [1, C, T, H, W] or pictures [1, C, H, W] may be, and one frame of it: where no config
        says how it is cut, in patches of one or two frames and up to 16 pixels."""
        sizes = latents.shape[1:] if self.frames_first else latents.shape[2:]
        t, h, w = (1, *(n for i, n in enumerate(sizes) if not (self.frames_first and i == 1)))[-3:]
        patches = [self.patch] if self.config else [(frames, n, n) for frames in (1, 2) for n in (1, 2, 4, 8, 16)]
        counts = ((t // frames, (h // rows) * (w // columns)) for frames, rows, columns in patches)
        return tuple(dict.fromkeys(n for frames, frame in counts for n in (max(1, frames) * frame, frame)))

    def latent_shape(self) -> tuple[int, ...]:
        """[1, tokens, C] where packed, [1, C, H, W] for a 2D class, [1, C, T, H, W] or [1, T, C, H, W] for a 3D one.

        Raises:
            UsageError: neither the config nor the class name say.
        """
        channels = self.number(LATENT, "in_channels", "in_visual_dim", "latent_channels")
        t, h, w = self.grid
        if self.packed:
            return (1, t * h * w, channels)
        if "3D" in self.name:
            return (1, t, channels, h, w) if self.frames_first else (1, channels, t, h, w)
        if "2D" in self.name:
            return (1, channels, h, w)
        raise UsageError(self.unknown(LATENT, "neither 2D nor 3D is in the class name"))

    def number(self, argument: str, *keys: str) -> int:
        """The first of these config keys that holds a number.

        Raises:
            UsageError: none does.
        """
        for key in keys:
            if isinstance(self.config.get(key), int):
                return int(self.config[key])
        raise UsageError(self.unknown(argument, f"its config has none of {', '.join(keys)}"))

    def unknown(self, argument: str, why: str) -> str:
        return (
            f"cannot make the argument '{argument}' of {self.name}.forward: {why}; give it with --inputs "
            f"FILE.safetensors, a tensor named '{argument}'"
        )


def signature_of(kind: Any, config: Config, model: torch.nn.Module) -> Signature:
    """Read a transformer class's forward.

    Args:
        model: of the class, without weights; its time embedding may multiply timesteps by 1000, as may the config.
    """
    named = {
        n: p
        for n, p in inspect.signature(kind.forward).parameters.items()
        if n not in ("self", "return_dict") and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    required = tuple(n for n, p in named.items() if p.default is p.empty)
    optional = tuple(n for n in named if n not in required)
    source = ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(kind.forward))))  # no comments, one form
    # A config saved by an older diffusers lacks what the class has learned since: its defaults hold then.
    defaults = {
        n: p.default for n, p in inspect.signature(kind.__init__).parameters.items() if p.default is not p.empty
    }
    config = {**defaults, **config}
    inside = any(isinstance(m, Timesteps) and m.scale != 1 for m in model.modules()) or "t_scale" in config
    own = inside or _SCALED_TIMESTEP.search(source)
    frames_first = bool(_FRAMES_FIRST.search(source))
    listed = frozenset(n for n, p in named.items() if _LISTS.match(str(p.annotation)))
    joined = config.get("image_dim") is not None
    fixed = _TEXT_FIXED.search(inspect.getsource(sys.modules[kind.__module__])) if joined else None
    text, scale = int(fixed[1]) if fixed else TEXT, 1.0 if own else 1000.0
    return Signature(kind.__name__, config, required, optional, scale, frames_first, listed, text)


@dataclass(frozen=True, slots=True)
class Made:
    """The arguments of one call besides latents and timestep.

    Attributes:
        tensors: on the CPU; floats in float32. static: what is no tensor.
        left_out: optional arguments that could be made, and with which the class cannot be called.
    """

    tensors: Mapping[str, torch.Tensor]
    static: Mapping[str, Static]
    left_out: tuple[str, ...] = ()


def make_arguments(signature: Signature, given: Mapping[str, torch.Tensor]) -> Made:
    """Make the arguments of a call.

    Args:
        given: tensors of the user's, which take precedence; one without axes is a number, and one for a parameter that
            takes lists is a list.

    Raises:
        UsageError: a required argument that neither the user nor the table knows.
    """
    tensors = {n: x for n, x in given.items() if (x.ndim and n not in signature.listed) or n in (LATENT, TIMESTEP)}
    static: dict[str, Static] = {n: x.tolist() for n, x in given.items() if n not in tensors}
    for name in (*signature.required, *signature.optional):
        if name in given or name in (LATENT, TIMESTEP):
            continue
        try:
            if name not in ARGUMENTS:
                raise UsageError(signature.unknown(name, f"parity knows {', '.join(sorted(ARGUMENTS))}"))
            value = ARGUMENTS[name](signature)
        except UsageError:
            if name in signature.required:
                raise
            continue  # a config that does not say how wide it is does not ask for it
        if isinstance(value, torch.Tensor):
            tensors[name] = value
        elif value is not None:
            static[name] = value
    return Made(tensors, static)


def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Normal float32 numbers that depend on the name alone."""
    return torch.randn(shape, generator=seeded(name))


def _text(s: Signature) -> torch.Tensor:
    return drawn("encoder_hidden_states", (1, s.text, s.number("encoder_hidden_states", *TEXT_WIDTHS)))


def _pooled(s: Signature) -> torch.Tensor:
    name = "pooled_projections"
    return drawn(name, (1, s.number(name, "pooled_projection_dim", "in_text_dim2", "text_embed_2_dim")))


def _image_text(s: Signature) -> torch.Tensor | None:
    width = s.config.get("image_dim")
    return None if width is None else drawn("encoder_hidden_states_image", (1, TEXT, int(width)))


def _image_ids(s: Signature) -> torch.Tensor:
    places = torch.cartesian_prod(*(torch.arange(n) for n in s.grid))
    return _axes(s, torch.nn.functional.pad(places, (0, 1)))


def _text_ids(s: Signature) -> torch.Tensor:
    """Zeros in the image's axes; Flux2's pipeline counts text along a fourth."""
    return _axes(s, torch.nn.functional.pad(torch.arange(TEXT)[:, None], (3, 0)))


def _axes(s: Signature, ids: torch.Tensor) -> torch.Tensor:
    """Position ids [tokens, axes] of (time, height, width, text): as many axes as the rotary embedding has.

    Three are those of the image, fewer its last; a fifth and further ones hold zeros.
    """
    axes = len(s.config.get("axes_dims_rope") or (0, 0, 0))
    return torch.nn.functional.pad(ids, (0, axes - 4)) if axes > 3 else ids[:, 3 - axes : 3]


def _labels(s: Signature) -> torch.Tensor | None:
    classes = s.config.get("num_embeds_ada_norm")
    return None if classes is None else torch.tensor([min(7, int(classes) - 1)])


_GUIDANCE = torch.tensor([4.00001])
"""Next to what bfloat16 holds, as `FIRST` of the timesteps is."""

ARGUMENTS: Mapping[str, Callable[[Signature], torch.Tensor | Static | None]] = {
    "encoder_hidden_states": _text,
    "encoder_attention_mask": lambda s: (torch.arange(TEXT) < VALID).long()[None],
    "encoder_hidden_states_mask": lambda s: (torch.arange(TEXT) < VALID).long()[None],
    "encoder_hidden_states_image": _image_text,
    "pooled_projections": _pooled,
    "img_ids": _image_ids,
    "txt_ids": _text_ids,
    "img_shapes": lambda s: [[s.grid]],
    "num_frames": lambda s: s.grid[0],
    "height": lambda s: s.grid[1],
    "width": lambda s: s.grid[2],
    "guidance": lambda s: _GUIDANCE if s.config.get("guidance_embeds") or "guidance" in s.required else None,
    # The time that a step leads to, of models that take two (AnyFlow, ACE-Step): the end.
    "r_timestep": lambda s: torch.zeros(1),
    "timestep_r": lambda s: torch.zeros(1),
    "class_labels": _labels,
    "padding_mask": lambda s: torch.zeros(1, 1, *s.grid[1:]) if s.config.get("concat_padding_mask") else None,
    "original_size": lambda s: torch.tensor([(64.0, 96.0)]),
    "target_size": lambda s: torch.tensor([(64.0, 96.0)]),
    "crop_coords": lambda s: torch.tensor([(0.0, 0.0)]),
}
"""Argument -> how to make it; None where this config has no use for it."""


def fitting(signature: Signature, model: torch.nn.Module, made: Made, given: Mapping[str, torch.Tensor]) -> Made:
    """The arguments with which the class can be called.

    Args:
        model: of the class, on the meta device. given: the user's, none of which is left out.
    """
    own = [n for n in signature.optional if n in made.tensors and n not in given]
    if not own or _can_be_called(signature, model, made, given):
        return made
    for name in own:
        fewer = Made({n: x for n, x in made.tensors.items() if n != name}, made.static, (name,))
        if _can_be_called(signature, model, fewer, given):
            return fewer
    return made


def _can_be_called(signature: Signature, model: torch.nn.Module, made: Made, given: Mapping[str, torch.Tensor]) -> bool:
    latents = given[LATENT] if LATENT in given else torch.empty(signature.latent_shape())
    tensors = {**made.tensors, LATENT: latents, TIMESTEP: torch.ones(1)}
    arguments: dict[str, Any] = {n: x.to("meta") for n, x in tensors.items()}
    try:
        with torch.no_grad():
            model(**arguments, **made.static)
    except Exception:  # of the class's own code, whatever it is
        return False
    return True


def read_inputs(path: Path, signature: Signature | None) -> dict[str, torch.Tensor]:
    """The tensors of an `--inputs` file; a `timestep` of one axis is the timesteps of the steps, in falling order.

    Args:
        signature: of the transformer; None where any name is taken.

    Raises:
        UsageError: no whole safetensors file, a tensor that is no argument, or one that is not finite.
    """
    found: dict[str, torch.Tensor] = {}
    file = StageFile(path)
    for name in file.names:
        if signature is not None and name not in (known := (*signature.required, *signature.optional)):
            raise UsageError(f"{path}: '{name}' is no argument of {signature.name}.forward: {', '.join(known)}")
        found[name] = file.read(name, file.shape(name), MASKS)
        check_finite(path, name, found[name])
    latents = found.get(LATENT)
    if latents is not None and (latents.ndim < 3 or latents.shape[0] != 1):
        raise UsageError(f"{path}: '{LATENT}' must have a batch of one, found shape {list(latents.shape)}")
    return found
