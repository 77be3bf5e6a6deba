"""The settings: every named choice that can change the numbers, one type for both sides.

A setting's name and values are a contract (users write them, goldens store them). Either side takes any setting, so
that a fault of the candidate can be reproduced on the reference alone; a value that a side cannot take is refused
before anything runs, with the list of those it can. Pure Python, so that `parity --help` costs nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from parity.errors import UsageError

Backend = Literal["torch", "torchax"]
Value = str | int | bool

MODEL = "model"
"""The value of a dtype setting that leaves the choice to the model's own pipeline."""

_FLOATS = ("float32", "bfloat16")
_MESH = re.compile(r"dp=([1-9]\d*),sp=([1-9]\d*),tp=([1-9]\d*)")
_CACHE = re.compile(r"off|deepcache:(\d+),(\d+),(\d+)")


@dataclass(frozen=True, slots=True)
class Choice:
    """What one setting can be.

    Attributes:
        name: as written on the command line.
        meaning: one line for the help.
        values: every value of the contract; empty where `pattern` or `integer` says what is allowed.
        takes: by backend, the values that it can take today; a missing backend takes all of them.
        default: the model's own meaning; by backend where the two run different programs by nature.
        integer: whether the value is an integer of at least `integer_min`.
        pattern: form of a structured value, with `form` to show it.
    """

    name: str
    meaning: str
    values: tuple[str, ...] = ()
    takes: Mapping[Backend, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    default: Value | Mapping[Backend, Value] = ""
    integer: bool = False
    integer_min: int = 0
    pattern: re.Pattern[str] | None = None
    form: str = ""

    @property
    def field(self) -> str:
        """The attribute of `Settings` that holds it."""
        return self.name.replace(".", "_")

    def default_for(self, backend: Backend) -> Value:
        return self.default[backend] if isinstance(self.default, Mapping) else self.default

    def allowed(self, backend: Backend) -> str:
        """What a backend takes, for messages."""
        if self.integer:
            takes = self.takes.get(backend)
            return ", ".join(takes) if takes else f"an integer of at least {self.integer_min}"
        return ", ".join(self.takes.get(backend, self.values)) or self.form

    def knows(self, text: str) -> bool:
        """Whether it is a value of this setting, on one backend at least."""
        if self.integer:
            return text.isdecimal() and int(text) >= self.integer_min
        return text in self.values or (self.pattern is not None and self.pattern.fullmatch(text) is not None)

    def parse(self, text: str, backend: Backend) -> Value:
        """The typed value of `text`.

        Raises:
            UsageError: it is no value of this setting, or one that the backend cannot take yet.
        """
        if not self.knows(text):
            hint = difflib.get_close_matches(text, self.values, n=1)
            also = f"; did you mean '{hint[0]}'?" if hint else ""
            values = ", ".join(self.values) or self.form or self.allowed(backend)
            raise UsageError(f"setting '{self.name}' has no value '{text}'{also} (values: {values})")
        takes = self.takes.get(backend)
        if takes is not None and text not in takes:
            raise UsageError(
                f"the {backend} path cannot take '{self.name}={text}' yet; it takes: {self.allowed(backend)}"
            )
        if self.integer:
            return int(text)
        return text == "true" if self.values == ("false", "true") else text


def _dtype_choice(name: str, meaning: str) -> Choice:
    return Choice(name, meaning, values=(MODEL, *_FLOATS), default=MODEL)


SPLASH_BLOCK = 128
"""Rows of a block of splash where none are given; its blocks of keys are multiples of it."""

CHOICES: tuple[Choice, ...] = (
    Choice("dtype", "parameters and activations", ("float32", "bfloat16", "float16"), default="float32"),
    Choice(
        "matmul_precision",
        "float32 matrix products (JAX's default on TPU rounds the operands to bfloat16)",
        ("highest", "high", "default"),
        default="highest",
    ),
    Choice(
        "attention.kernel",
        "implementation of the joint attention",
        ("flex", "sdpa", "splash"),
        takes={"torch": ("flex", "sdpa"), "torchax": ("sdpa", "splash")},
        default={"torch": "flex", "torchax": "sdpa"},
    ),
    Choice(
        "attention.mask",
        "how padded text is kept out of the joint attention",
        ("exact", "none", "zero_kv", "zero_kv_rescaled", "segment_ids", "segment_ids_first_row"),
        default="exact",
    ),
    Choice("refiner.mask", "the text refiner's own attention and its pooled mean", ("exact", "none"), default="exact"),
    Choice(
        "attention.block_q",
        "query block of a blocked kernel (0: the kernel's own)",
        default=0,
        integer=True,
    ),
    Choice(
        "attention.block_kv",
        "key block of a blocked kernel (0: the kernel's own)",
        default=0,
        integer=True,
    ),
    Choice(
        "attention.block_padding",
        "whether keys added to fill a block are masked",
        ("masked", "unmasked"),
        default="masked",
    ),
    Choice("attention.k_smooth", "subtract the mean key", ("false", "true"), default=False),
    Choice("attention.softmax_dtype", "dtype of the softmax", _FLOATS, default="float32"),
    Choice("text.reorder", "order of the text tokens", ("valid_first", "concatenate"), default="valid_first"),
    Choice("text.byt5_dtype", "dtype the ByT5 encoder runs in", ("same", *_FLOATS), default="same"),
    Choice("vision_states", "image embeddings of text-to-video", ("zeros", "none"), default="zeros"),
    _dtype_choice("timestep_dtype", "timesteps as the transformer is given them"),
    _dtype_choice("latents_dtype", "latents between steps"),
    _dtype_choice("schedule_dtype", "sigmas and timesteps of the scheduler"),
    _dtype_choice("guidance_dtype", "combination of the guidance branches"),
    _dtype_choice("norm_dtype", "arithmetic of the normalisation layers"),
    Choice("rope", "rotary tables: computed per call or once", ("per_call", "cached"), default="per_call"),
    Choice("rope_dtype", "dtype of the rotary tables", _FLOATS, default="float32"),
    Choice("scheduler.warmup_steps", "warm-up calls that share the scheduler's state", default=0, integer=True),
    Choice("noise.device", "where the initial noise is drawn", ("cpu", "device"), default="cpu"),
    Choice(
        "mesh",
        "devices by axis: data, sequence, tensor parallel",
        takes={"torch": ("dp=1,sp=1,tp=1",)},
        default="dp=1,sp=1,tp=1",
        pattern=_MESH,
        form="dp=N,sp=N,tp=N",
    ),
    Choice(
        "sharding",
        "rule set that places the weights on the mesh",
        ("tp", "tp_fc2_replicated", "tp_proj_replicated", "tp_column", "replicated"),
        takes={"torch": ("tp",)},
        default="tp",
    ),
    Choice(
        "cache",
        "feature cache: blocks START to before END run at every INTERVAL-th step alone",
        default="off",
        pattern=_CACHE,
        form="off or deepcache:start,end,interval",
    ),
    Choice("vae.tiling", "decode in overlapping tiles, of the class's own size", ("false", "true"), default=False),
    Choice("vae.slicing", "decode the videos of a batch one by one", ("false", "true"), default=False),
    Choice(
        "jit",
        "compile the transformer with jax.jit",
        ("false", "true"),
        takes={"torch": ("false",)},
        default={"torch": False, "torchax": True},
    ),
)

_BY_NAME = {choice.name: choice for choice in CHOICES}

BITS: Mapping[str, int] = {"float32": 24, "float16": 11, "bfloat16": 8}
"""Significant bits of a dtype, the hidden one included."""

NEUTRAL: Mapping[str, Value] = {
    "dtype": "float32",
    "matmul_precision": "highest",
    "attention.softmax_dtype": "float32",
    "text.byt5_dtype": "same",
    "timestep_dtype": MODEL,
    "latents_dtype": MODEL,
    "schedule_dtype": MODEL,
    "guidance_dtype": MODEL,
    "norm_dtype": MODEL,
    "rope_dtype": "float32",
}
"""The settings that only round, each at the value that rounds least: what the structure round gives both sides."""

LAYOUT = ("text.reorder", "vision_states")
"""The settings of which tokens there are, and in which order: where they differ, activations do not line up by row."""


@dataclass(frozen=True, slots=True)
class DeepCache:
    """The setting `cache=deepcache:start,end,interval`.

    Attributes:
        start, end: the blocks that are skipped, end excluded. interval: they run at its multiples.
    """

    start: int
    end: int
    interval: int

    def full(self, step: int) -> bool:
        """Whether all blocks run at this step."""
        return step % self.interval == 0


def deep_cache(text: str) -> DeepCache | None:
    """The cache that a value of `cache` names; None for `off`."""
    match = _CACHE.fullmatch(text)
    return DeepCache(*map(int, match.groups())) if match is not None and match[1] is not None else None


@dataclass(frozen=True)
class Settings:
    """One value for each setting, for one side. Build it with `parse`.

    Attributes:
        backend: which program takes them.
        values: by setting name.
    """

    backend: Backend
    values: Mapping[str, Value]

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def text(self, name: str) -> str:
        """A string-valued setting."""
        return str(self.values[name])

    def changed(self, name: str) -> bool:
        """Whether the value is not the backend's default."""
        return self.values[name] != _BY_NAME[name].default_for(self.backend)

    @property
    def mesh_shape(self) -> tuple[int, int, int]:
        """(dp, sp, tp)."""
        match = _MESH.fullmatch(self.text("mesh"))
        assert match is not None
        dp, sp, tp = (int(n) for n in match.groups())
        return dp, sp, tp

    def require_stages(self, stages: Iterable[str]) -> None:
        """Refuse a setting of a stage that is not run.

        Raises:
            UsageError: one is not at its default.
        """
        for name, stage in ((c.name, c.name.partition(".")[0]) for c in CHOICES):
            if stage == "vae" and stage not in stages and self.changed(name):
                raise UsageError(
                    f"'{name}={self.as_text()[name]}' is a setting of the {stage} stage, which is not run; "
                    f"`parity run --stages transformer,{stage}` runs it"
                )

    @property
    def deep_cache(self) -> DeepCache | None:
        """The feature cache, if any."""
        return deep_cache(self.text("cache"))

    def replace(self, **changes: Value) -> Settings:
        """A copy with some values changed; keys with `.` written as `_`."""
        by_field = {c.field: c.name for c in CHOICES}
        return Settings(self.backend, {**self.values, **{by_field[k]: v for k, v in changes.items()}})

    @property
    def neutral(self) -> Settings:
        """The same choices in float32 throughout, with the highest matmul precision."""
        return Settings(self.backend, {**self.values, **NEUTRAL})

    @property
    def working_bits(self) -> int:
        """Significant bits of the coarsest arithmetic that a network of this path computes in: 24, 16, 11 or 8.

        A single quantity kept in bfloat16 (latents, schedule, rotary tables, ...) is no working dtype: it is judged
        against the floor of the dtype that the networks have.
        """
        used = [BITS[self.text("dtype")]]
        if self.values["text.byt5_dtype"] in BITS:
            used.append(BITS[self.text("text.byt5_dtype")])
        if self.values["dtype"] == "float32":
            # The operands of float32 products (`parity.paths.precision`); 16-bit operands are exact in any precision.
            used.append({"highest": 24, "high": 16, "default": 8}[self.text("matmul_precision")])
        return min(used)

    @property
    def exact(self) -> bool:
        """Whether the transformer computes in float32 with exact operands, so that its run is the truth itself."""
        return self.values["dtype"] == "float32" and self.values["matmul_precision"] == "highest"

    def as_text(self) -> dict[str, str]:
        """Every setting as written on the command line."""
        return {name: render(value) for name, value in self.values.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting in which two paths differ.

    Attributes:
        setting: its name. reference, candidate: values as written on the command line.
    """

    setting: str
    reference: str
    candidate: str


def kernels(backend: Backend) -> tuple[str, ...]:
    """The attention kernels that a backend can take today."""
    choice = _BY_NAME["attention.kernel"]
    return choice.takes.get(backend, choice.values)


def render(value: Value) -> str:
    """A value as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(backend: Backend, assignments: Iterable[str] = ()) -> Settings:
    """Settings of a backend from `name=value` texts over its defaults.

    Raises:
        UsageError: an unknown name (with the nearest known one), a value out of range, a repeated name, or values that
            mean nothing together.
    """
    values: dict[str, Any] = {c.name: c.default_for(backend) for c in CHOICES}
    seen: set[str] = set()
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"'{text}' is not of the form SETTING=VALUE")
        if name not in _BY_NAME:
            near = difflib.get_close_matches(name, list(_BY_NAME), n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise UsageError(f"unknown setting '{name}'{hint} (`parity models` lists all settings)")
        if name in seen:
            raise UsageError(f"setting '{name}' is given twice")
        seen.add(name)
        values[name] = _BY_NAME[name].parse(value, backend)
    settings = Settings(backend, values)
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    """Refuse settings that mean nothing beside one another. The reference emulates blocks, so it takes them all.

    Raises:
        UsageError: naming the setting, and what it needs.
    """
    cache = settings.deep_cache
    if cache is not None and (cache.start >= cache.end or cache.interval < 2):
        raise UsageError(
            f"'cache={settings.text('cache')}' skips nothing: START must be below END, and INTERVAL at least 2"
        )
    if settings.backend == "torch":
        return
    splash = settings.text("attention.kernel") == "splash"
    for name in ("attention.block_q", "attention.block_kv", "attention.block_padding"):
        if settings.changed(name) and not splash:
            raise UsageError(
                f"'{name}={render(settings[name])}' needs a kernel with blocks: give attention.kernel=splash too "
                f"(this side's is {settings.text('attention.kernel')})"
            )
    if not splash:
        return
    for name, unit in (("attention.block_q", 8), ("attention.block_kv", SPLASH_BLOCK)):
        if int(settings[name]) % unit:
            raise UsageError(f"splash takes '{name}' in multiples of {unit}, found {settings[name]}")
    if settings.text("attention.softmax_dtype") != "float32":
        raise UsageError(
            "splash always computes its softmax in float32: "
            "'attention.softmax_dtype=bfloat16' needs attention.kernel=sdpa"
        )
    if settings.text("matmul_precision") == "high":
        raise UsageError(
            "splash has no three-pass products: 'matmul_precision=high' needs attention.kernel=sdpa "
            "(splash takes: highest, default)"
        )


def differences(reference: Settings, candidate: Settings) -> tuple[Difference, ...]:
    """The settings in which two sides differ; where both keep the default of their own backend they do not."""
    return tuple(
        Difference(c.name, render(reference[c.name]), render(candidate[c.name]))
        for c in CHOICES
        if reference[c.name] != candidate[c.name] and (reference.changed(c.name) or candidate.changed(c.name))
    )
