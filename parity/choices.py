"""What each setting can be: its name, its values, what each backend takes of them, and its default.

A name and its values are a contract (users write them, goldens store them); a value that a side cannot take is refused
before anything runs, with the list of those it can. Pure Python, so that `parity --help` costs nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from parity.errors import UsageError

Backend = Literal["torch", "torchax"]
Value = str | int | bool

MODEL = "model"
"""The value of a dtype setting that leaves the choice to the model's own pipeline."""

_FLOATS = ("float32", "bfloat16")
MESH = re.compile(r"dp=([1-9]\d*),sp=([1-9]\d*),tp=([1-9]\d*)")
CACHE = re.compile(r"off|deepcache:(\d+),(\d+),(\d+)")


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
        pattern=MESH,
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
        pattern=CACHE,
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

BY_NAME: Mapping[str, Choice] = {choice.name: choice for choice in CHOICES}
"""Every choice by its setting."""
