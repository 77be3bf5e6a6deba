"""The catalogue of settings: one entry holds all that parity knows of a setting; what depends on which setting it is
reads a field of this.

To add one: write its entry here; let the code that it changes read it and report so (`Reached.mark`); add its effect
to `tests/paths/test_settings_take_effect.py`. `tests/settings/test_catalogue.py` fails where a part is missing.

Names and values are a contract: users write them, goldens store them. Pure Python, so that `parity --help` costs
nothing.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from parity.errors import UsageError, did_you_mean

Backend = Literal["torch", "torchax"]
Value = str | int | bool

Place = Literal["text", "text.byt5", "transformer", "vae"]
"""A part of a generation: a stage, or one encoder of the text stage."""

Input = Literal[
    "weights", "embeddings", "masks", "image embeddings", "noise", "schedule", "scheduler state", "rotary tables",
]  # fmt: skip
"""What both sides' networks start from, compared before any forward."""

Capability = Literal[
    "attention", "text mask", "text refiner", "ByT5", "vision states", "guidance", "rotary tables", "step counter",
    "mesh", "blocks",
]  # fmt: skip
"""What a model must have for a setting to mean anything."""


# --- what values look like


@dataclass(frozen=True, slots=True)
class Kind:
    """What the values of a setting look like.

    Attributes:
        form: for messages. read: the typed value of a text; None where it is not one. values: all texts, for either
            backend; empty where there is no list.
    """

    form: str
    read: Callable[[str], Value | None]
    values: tuple[str, ...] = ()


def one_of(*values: str) -> Kind:
    """One of a list."""
    return Kind(", ".join(values), lambda text: text if text in values else None, values)


FLAG = Kind("false, true", {"false": False, "true": True}.get, ("false", "true"))
_MOST = 2**31 - 1


def integer(most: int = _MOST) -> Kind:
    """An integer that is not negative."""

    def read(text: str) -> Value | None:
        return int(text) if text.isdecimal() and len(text) <= 10 and int(text) <= most else None

    return Kind("an integer of at least 0" + (f" and at most {most}" if most < _MOST else ""), read)


def written(pattern: re.Pattern[str], form: str) -> Kind:
    """A text that a pattern matches whole; it may have commas."""
    return Kind(form, lambda text: text if pattern.fullmatch(text) else None)


def render(value: Value) -> str:
    """A value as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- what is known of a setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: as written on the command line; a contract, as its values are.
        meaning: one line for the help.
        kind: what its values look like.
        default: the model's own meaning; by backend where the two run different programs by nature.
        fault: what is wrong where it is at fault, with `{value}` for the candidate's value, `{setting}` for its name.
        remedy: what to change then, an imperative.
        takes: by backend, the values that it can take today; a missing backend takes all of them.
        neutral: of a setting that only rounds, the value that rounds least: both sides have it in the logic check.
        places: where it applies. requires: what a model must have for it to mean anything.
        changes: the inputs whose values it may change.
        expected_at: globs over `module` or `module:port`: the sites that it changes by design.
        expected_within: relative L2 distance up to which it does so; a table or a norm that is rounded is near.
        layout: whether it changes which tokens there are, or their order, so that activations do not align by row.
        examples: values that stand for all where `kind` lists none; `{last}` is the index of the last block.
        needs: settings without which it does nothing, as `NAME=VALUE`.
        innocent: whether it is no known fault: it changes nothing in exact arithmetic, or preflight sees it.
        around_ports: whether parity applies it outside a port: in the loop, or in what compiles it.
    """

    name: str
    meaning: str
    kind: Kind
    default: Value | Mapping[Backend, Value]
    fault: str = "{setting} is {value}"
    remedy: str = "give it the reference's value"
    takes: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)
    neutral: Value | None = None
    places: tuple[Place, ...] = ("transformer",)
    requires: tuple[Capability, ...] = ()
    changes: tuple[Input, ...] = ()
    expected_at: tuple[str, ...] = ()
    expected_within: float = math.inf
    layout: bool = False
    examples: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    innocent: bool = False
    around_ports: bool = False

    def default_for(self, backend: Backend) -> Value:
        return self.default[backend] if isinstance(self.default, Mapping) else self.default

    def allowed(self, backend: Backend) -> str:
        """What a backend takes, for messages."""
        return ", ".join(self.takes.get(backend, ())) or self.kind.form

    def applies_in(self, place: str) -> bool:
        """Whether a part of a generation has code for it: `text.byt5` has what `text` has."""
        return any(place == own or place.startswith(f"{own}.") for own in self.places)

    def is_of(self, stages: Iterable[str]) -> bool:
        """Whether it applies anywhere in these stages."""
        return not {place.partition(".")[0] for place in self.places}.isdisjoint(stages)

    def read(self, text: str) -> Value:
        """The typed value of a text, whether or not parity's own paths take it.

        Raises:
            UsageError: it is not a value of this setting.
        """
        value = self.kind.read(text)
        if value is None:
            hint = did_you_mean(text, self.kind.values)
            raise UsageError(f"setting '{self.name}' has no value '{text}'{hint} (values: {self.kind.form})")
        return value

    def parse(self, text: str, backend: Backend) -> Value:
        """The typed value of a text for one of parity's own paths.

        Raises:
            UsageError: it is not a value of this setting, or one that the backend cannot take yet.
        """
        value, takes = self.read(text), self.takes.get(backend)
        if takes is not None and text not in takes:
            raise UsageError(
                f"the {backend} path cannot take '{self.name}={text}' yet; it takes: {self.allowed(backend)}"
            )
        return value


# --- the settings


AUTO = "auto"
"""The value of `device` that leaves the choice to parity."""

FLEX_DEVICES = frozenset({AUTO, "cuda", "cpu", "xpu"})
"""Where torch has a flex attention."""

MODEL = "model"
"""The value of a dtype setting that leaves the choice to the model's own pipeline."""

BITS: Mapping[str, int] = {"float32": 24, "float16": 11, "bfloat16": 8}
"""Significant bits of a dtype, the hidden one included."""

SPLASH_BLOCK = 128
"""Rows of a block of splash where none are given; its blocks of keys are multiples of it."""

DEVICE = re.compile(r"[a-z][a-z0-9_]{0,30}(:\d{1,4})?")
MESH = re.compile(r"dp=([1-9]\d*),sp=([1-9]\d*),tp=([1-9]\d*)")
CACHE = re.compile(r"off|deepcache:(\d{1,9}),(\d{1,9}),(\d{1,9})")

_FLOATS = ("float32", "bfloat16")
_EVERYWHERE: tuple[Place, ...] = ("text", "transformer", "vae")
ROUNDS = 0.1
"""Relative L2 distance by which an operation in bfloat16 moves what is behind it, at most: a softmax, a norm, a table.
A timestep that is rounded moves its embedding by more."""
SUMS = 1e-5
"""The same of a mask that is undone behind the softmax, in float32: rescaling divides by the share of weight that is
left, and its rounding with it, 1.2e-7 / 0.02 where that is 2 %. Measured: 1.9e-6 (`zero_kv_rescaled`, nano-hunyuan)."""
SPLASH = "attention.kernel=splash"
"""What a setting of blocks needs on the candidate."""

_kept_in = functools.partial(Setting, kind=one_of(MODEL, *_FLOATS), default=MODEL, neutral=MODEL)
"""A quantity whose dtype is the model's choice."""

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="dtype", meaning="parameters and activations", kind=one_of("float32", "bfloat16", "float16"),
        default="float32", neutral="float32", places=_EVERYWHERE,
        changes=("weights", "embeddings", "masks", "image embeddings", "noise"),
        fault="parameters and activations are {value}", remedy="run the transformer in the reference's dtype",
        around_ports=True,
    ),
    Setting(
        name="device",
        meaning="device that torch computes on: cuda, cpu, mps, xpu, tpu, ...; auto: CUDA where there is one, else the "
        "CPU. A candidate that is given one runs in torch, not in torchax",
        kind=written(DEVICE, "auto, or a device of torch's: cuda:1"), default=AUTO, places=_EVERYWHERE,
        examples=("cpu",), innocent=True, around_ports=True,
    ),
    Setting(
        name="matmul_precision",
        meaning="float32 matrix products (JAX's default on TPU rounds the operands to bfloat16)",
        kind=one_of("highest", "high", "default"), default="highest", neutral="highest", places=_EVERYWHERE,
        fault="float32 products round their operands (precision {value})",
        remedy="set jax_default_matmul_precision to highest",
        around_ports=True,
    ),
    Setting(
        name="attention.kernel", meaning="implementation of the joint attention",
        kind=one_of("flex", "sdpa", "splash"), default={"torch": "flex", "torchax": "sdpa"},
        takes={"torch": ("flex", "sdpa"), "torchax": ("sdpa", "splash")}, requires=("attention",), innocent=True,
    ),
    Setting(
        name="attention.mask", meaning="how padded text is kept out of the joint attention",
        kind=one_of("exact", "none", "zero_kv", "zero_kv_rescaled", "segment_ids", "segment_ids_first_row"),
        default="exact", requires=("attention", "text mask"), expected_at=("*.attention",), expected_within=SUMS,
        fault="padded text is kept out of the joint attention by '{value}', not by the exact mask",
        remedy="mask the logits (segment ids or an additive mask), or rescale zeroed keys by their log-sum-exp",
    ),
    Setting(
        name="refiner.mask", meaning="the text refiner's own attention and its pooled mean",
        kind=one_of("exact", "none"), default="exact", requires=("text refiner",),
        fault="the text refiner attends to padding (its mask is {value})",
        remedy="hand the prompt mask to the refiner and its pooled mean",
    ),
    Setting(
        name="attention.block_q", meaning="query block of a blocked kernel (0: the kernel's own)", kind=integer(),
        default=0, requires=("attention",), examples=("64",), needs=(SPLASH,), innocent=True,
    ),
    Setting(
        name="attention.block_kv", meaning="key block of a blocked kernel (0: the kernel's own)", kind=integer(),
        default=0, requires=("attention",), examples=("128", "256"), needs=(SPLASH,), innocent=True,
    ),
    Setting(
        name="attention.block_padding", meaning="whether keys added to fill a block are masked",
        kind=one_of("masked", "unmasked"), default="masked", requires=("attention",), needs=(SPLASH,),
        fault="keys that fill the last block are {value}",
        remedy="mask the keys beyond the sequence, or choose a block size that divides it",
    ),
    Setting(
        name="attention.k_smooth", meaning="subtract the mean key", kind=FLAG, default=False,
        requires=("attention",),
        fault="the mean key is subtracted", remedy="it changes nothing in exact arithmetic", innocent=True,
    ),
    Setting(
        name="attention.softmax_dtype", meaning="dtype of the softmax", kind=one_of(*_FLOATS), default="float32",
        neutral="float32", requires=("attention",), expected_at=("*.attention",), expected_within=ROUNDS,
        fault="the softmax is in {value}", remedy="compute the softmax in float32",
    ),
    Setting(
        name="text.reorder", meaning="order of the text tokens", kind=one_of("valid_first", "concatenate"),
        default="valid_first", requires=("text mask",), layout=True,
        fault="text tokens stand in the order '{value}'",
        remedy="put the valid tokens first, and their mask with them",
    ),
    Setting(
        name="text.byt5_dtype", meaning="dtype the ByT5 encoder runs in", kind=one_of("same", *_FLOATS),
        default="same", neutral="same", places=("text.byt5", "transformer"), requires=("ByT5",),
        changes=("embeddings",),
        # ByT5's embeddings enter through their own projection.
        expected_at=(":in.encoder_hidden_states_2", "context_embedder_2", "context_embedder_2.*"),
        fault="the ByT5 encoder runs in {value}", remedy="run it in the reference's dtype",
    ),
    Setting(
        name="vision_states", meaning="image embeddings of text-to-video", kind=one_of("zeros", "none"),
        default="zeros", requires=("vision states",), changes=("image embeddings",),
        # No vision tokens: their projection is not called, their type embedding neither.
        expected_at=(":in.image_embeds", "image_embedder", "image_embedder.*", "cond_type_embed"), layout=True,
        fault="the vision states are '{value}'", remedy="pass what the reference passes",
    ),
    _kept_in(
        name="timestep_dtype", meaning="timesteps as the transformer is given them",
        expected_at=(":in.timestep", "time_embed", "time_embed.*", "*time_text_embed*"),
        fault="timesteps are rounded to {value}", remedy="pass them in float32", around_ports=True,
    ),
    _kept_in(
        name="latents_dtype", meaning="latents between steps", changes=("noise",),
        fault="latents are kept in {value} between steps", remedy="keep them in float32", around_ports=True,
    ),
    _kept_in(
        name="schedule_dtype", meaning="sigmas and timesteps of the scheduler", changes=("schedule",),
        fault="sigmas and timesteps are in {value}", remedy="keep the schedule in float32", around_ports=True,
    ),
    _kept_in(
        name="guidance_dtype", meaning="combination of the guidance branches", requires=("guidance",),
        fault="the branches are combined in {value}", remedy="combine them in float32", around_ports=True,
    ),
    _kept_in(
        name="norm_dtype", meaning="arithmetic of the normalisation layers", expected_at=("*norm", "*norm[0-9_.]*"),
        expected_within=ROUNDS,
        fault="norms compute in {value}", remedy="compute statistics in float32",
    ),
    Setting(
        name="rope", meaning="rotary tables: computed per call or once", kind=one_of("per_call", "cached"),
        default="per_call", requires=("rotary tables",), innocent=True,
    ),
    Setting(
        name="rope_dtype", meaning="dtype of the rotary tables", kind=one_of(*_FLOATS), default="float32",
        neutral="float32", requires=("rotary tables",), changes=("rotary tables",), expected_at=("rope", "rope.*"),
        expected_within=ROUNDS,
        fault="the rotary tables are in {value}", remedy="keep them in float32",
    ),
    Setting(
        name="scheduler.warmup_steps", meaning="warm-up calls that share the scheduler's state",
        kind=integer(most=10_000),
        default=0, requires=("step counter",), changes=("scheduler state",), examples=("1",),
        fault="warm-up calls moved the scheduler", remedy="reset the scheduler after warming up",
        around_ports=True,
    ),
    Setting(
        name="mesh", meaning="devices by axis: data, sequence, tensor parallel",
        kind=written(MESH, "dp=N,sp=N,tp=N"), default="dp=1,sp=1,tp=1",
        takes={"torch": ("dp=1,sp=1,tp=1",)}, requires=("mesh",),
        examples=("dp=2,sp=1,tp=1", "dp=1,sp=2,tp=1", "dp=1,sp=1,tp=2"), innocent=True,
    ),
    Setting(
        name="sharding", meaning="rule set that places the weights on the mesh",
        kind=one_of("tp", "tp_fc2_replicated", "tp_proj_replicated", "tp_column", "replicated"), default="tp",
        takes={"torch": ("tp",)}, requires=("mesh",), needs=("mesh=dp=1,sp=1,tp=2",), innocent=True,
    ),
    Setting(
        name="cache", meaning="feature cache: blocks START to before END run at every INTERVAL-th step alone",
        kind=written(CACHE, "off or deepcache:start,end,interval"), default="off",
        requires=("blocks",), examples=("deepcache:1,{last},2",),
        fault="features are cached ({value})", remedy="switch the cache off, or accept its price", innocent=True,
    ),
    Setting(
        name="vae.tiling", meaning="decode in overlapping tiles, of the class's own size", kind=FLAG,
        default=False, places=("vae",),
        fault="the video is decoded in tiles that are blended ({value})", remedy="decode it whole on both sides",
    ),
    Setting(
        name="vae.scaling", meaning="whether latents are divided by the VAE's scaling factor",
        kind=one_of(MODEL, "none"), default=MODEL, places=("vae",),
        fault="the latents are not divided by scaling_factor ({value})", remedy="divide them before the VAE",
    ),
    Setting(
        name="vae.attention", meaning="which frames the decoder's attention sees",
        kind=one_of(MODEL, "by_frame", "causal", "full"), default=MODEL, places=("vae",),
        fault="the VAE's attention has the mask '{value}' (by_frame: one frame at a time; causal: none that is later; "
        "full: all)",
        remedy="let each frame attend to those that the original's attends to",
    ),
    Setting(
        name="vae.norm", meaning="of which frames the decoder's group norms take their statistics",
        kind=one_of(MODEL, "by_frame"), default=MODEL, places=("vae",),
        fault="the VAE's group norms take the statistics of each frame ({value})",
        remedy="take them over all frames together",
    ),
    Setting(
        name="vae.padding", meaning="how the decoder's convolutions pad a video",
        kind=one_of(MODEL, "zeros", "both_ends"), default=MODEL, places=("vae",),
        fault="the VAE's convolutions pad otherwise: '{value}' (zeros: in place of repeated edges; both_ends: in time "
        "before and behind)",
        remedy="pad as the original does: causally in time, with what it repeats",
    ),
    Setting(
        name="jit", meaning="compile the transformer with jax.jit", kind=FLAG,
        default={"torch": False, "torchax": True}, takes={"torch": ("false",)}, places=_EVERYWHERE, innocent=True,
        around_ports=True,
    ),
)
# fmt: on

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

UNKNOWN = Setting(name="", meaning="", kind=FLAG, default=False)
"""In the place of one that is not in the catalogue, as of a golden that a later version recorded."""

NEUTRAL = {s.name: s.neutral for s in SETTINGS if s.neutral is not None}
"""The settings that only round, each at the value that rounds least: what the logic check gives both sides."""

LAYOUT = tuple(s.name for s in SETTINGS if s.layout)
"""The settings of which tokens there are, and in which order."""


def changed_by(what: Input) -> tuple[str, ...]:
    """The settings that may change an input, the one that changes least else first."""
    return tuple(s.name for s in sorted(SETTINGS, key=lambda s: len(s.changes)) if what in s.changes)


def meaningless(lacks: Mapping[Capability, str]) -> dict[str, str]:
    """The settings that mean nothing to a model, with the reason.

    Args:
        lacks: what the model does not have -> the reason as a user should read it.
    """
    reasons = {s.name: [lacks[need] for need in s.requires if need in lacks] for s in SETTINGS}
    return {name: found[0] for name, found in reasons.items() if found}


def sentence(name: str, value: str) -> str:
    """What a setting's fault is, in words."""
    return BY_NAME.get(name, UNKNOWN).fault.format(setting=name, value=value)


def remedy(name: str) -> str:
    """What to change about a setting's fault."""
    return BY_NAME.get(name, UNKNOWN).remedy
