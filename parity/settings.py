"""The settings of one side: every named choice that can change the numbers, one type for both sides.

Either side takes any setting (`parity.choices` lists them), so that a fault of the candidate can be reproduced on the
reference alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from parity.choices import BY_NAME, CACHE, CHOICES, MESH, MODEL, SPLASH_BLOCK, Backend, Choice, Value
from parity.errors import UsageError

__all__ = [
    "BITS",
    "CHOICES",
    "LAYOUT",
    "MODEL",
    "NEUTRAL",
    "SPLASH_BLOCK",
    "Backend",
    "Choice",
    "DeepCache",
    "Difference",
    "Settings",
    "Value",
    "deep_cache",
    "differences",
    "kernels",
    "parse",
    "render",
]

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
    match = CACHE.fullmatch(text)
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
        return self.values[name] != BY_NAME[name].default_for(self.backend)

    @property
    def mesh_shape(self) -> tuple[int, int, int]:
        """(dp, sp, tp)."""
        match = MESH.fullmatch(self.text("mesh"))
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
    choice = BY_NAME["attention.kernel"]
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
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, list(BY_NAME), n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise UsageError(f"unknown setting '{name}'{hint} (`parity models` lists all settings)")
        if name in seen:
            raise UsageError(f"setting '{name}' is given twice")
        seen.add(name)
        values[name] = BY_NAME[name].parse(value, backend)
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
