"""Everything that may differ between two sides: the settings of one side, a value for each setting of the catalogue.

Either side takes any setting, so that a fault of the candidate can be reproduced on the reference alone. `catalogue.py`
has one entry for each setting, with all that is known of it; the rest of the package reads it.

A setting that silently does nothing (a patched function that the model never calls) would make two equal runs look
like two different ones: the code that a setting replaces reports that it was reached (`Reached`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parity.errors import InconclusiveError, UsageError, did_you_mean
from parity.settings.catalogue import (
    AUTO,
    BITS,
    BY_NAME,
    CACHE,
    FLEX_DEVICES,
    LAYOUT as LAYOUT,
    MODEL as MODEL,
    NEUTRAL,
    SETTINGS,
    SPLASH_BLOCK,
    Backend,
    Capability as Capability,
    Input as Input,
    Setting as Setting,
    Value,
    changed_by as changed_by,
    meaningless as meaningless,
    remedy as remedy,
    render,
    sentence as sentence,
)


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
        """Whether the value is not the default of the backend, on its device."""
        return self.values[name] != default_of(BY_NAME[name], self.backend, self.text("device"))

    @property
    def mesh_shape(self) -> tuple[int, int, int]:
        """(dp, sp, tp)."""
        dp, sp, tp = (int(n) for n in re.findall(r"\d+", self.text("mesh")))
        return dp, sp, tp

    def require_stages(self, stages: Iterable[str]) -> None:
        """Refuse a setting of stages that are not run.

        Raises:
            UsageError: one is not at its default.
        """
        run = tuple(stages)
        for setting in SETTINGS:
            if self.changed(setting.name) and not setting.is_of(run):
                own = setting.places[-1]
                wanted = ",".join(stage for stage in ("text", "transformer", "vae") if stage in (*run, own))
                raise UsageError(
                    f"'{setting.name}={self.as_text()[setting.name]}' is a setting of the {own} stage, which is "
                    f"not run; `--stages {wanted}` runs it"
                )

    @property
    def deep_cache(self) -> DeepCache | None:
        """The feature cache, if any."""
        return deep_cache(self.text("cache"))

    def with_(self, changes: Mapping[str, Value]) -> Settings:
        """A copy with some values changed."""
        return Settings(self.backend, {**self.values, **changes})

    @property
    def neutral(self) -> Settings:
        """The same choices in float32 throughout, with the highest matmul precision."""
        return self.with_(NEUTRAL)

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
            # The operands of float32 products (`parity.paths.reference`); 16-bit operands are exact in any precision.
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


def differences(reference: Settings, candidate: Settings) -> tuple[Difference, ...]:
    """The settings in which two sides differ; where both keep the default of their own backend they do not."""
    return tuple(
        Difference(name, render(reference[name]), render(candidate[name]))
        for name in BY_NAME
        if reference[name] != candidate[name] and (reference.changed(name) or candidate.changed(name))
    )


def default_of(setting: Setting, backend: Backend, device: str) -> Value:
    """What a side has by default: flex attention is not for every device."""
    without_flex = backend == "torch" and device.partition(":")[0] not in FLEX_DEVICES
    return "sdpa" if without_flex and setting.name == "attention.kernel" else setting.default_for(backend)


# --- from what a user wrote


def parse(backend: Backend, assignments: Iterable[str] = ()) -> Settings:
    """Settings of a backend from `name=value` texts over its defaults.

    A candidate of torchax's that is given a device of torch's is torch's.

    Raises:
        UsageError: an unknown name (with the nearest known one), a value out of range, a repeated name, or values that
            mean nothing together.
    """
    given = list(assignments)
    devices = [text.partition("=")[2] for text in given if text.startswith("device=")]
    backend = "torch" if any(device != AUTO for device in devices) else backend
    values = {setting.name: default_of(setting, backend, devices[-1] if devices else AUTO) for setting in SETTINGS}
    seen: set[str] = set()
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"'{text}' is not of the form SETTING=VALUE")
        if name not in BY_NAME:
            group = [other for other in BY_NAME if other.startswith(f"{name}.")]
            hint = f"; there are {', '.join(group)}" if group else did_you_mean(name, BY_NAME)
            raise UsageError(f"unknown setting '{name}'{hint} (`parity info settings` lists them)")
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
    if settings.backend != "torchax":
        return
    for setting in SETTINGS:
        for need in setting.needs if settings.changed(setting.name) else ():
            name = need.partition("=")[0]
            if not settings.changed(name):
                own = f"'{setting.name}={settings.text(setting.name)}'"
                raise UsageError(f"{own} does nothing with {name}={settings.text(name)}: give {need} too")
    if settings.text("attention.kernel") != "splash":
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


# --- whether it took effect


@dataclass
class Reached:
    """Which settings' replaced code ran. Each that is not at its default is expected to, during the first step.

    Attributes:
        settings: the side's settings. stage: part of the generation; each part proves its own settings.
        marks: setting name -> how often it was reached.
    """

    settings: Settings
    stage: str = "transformer"
    marks: dict[str, int] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """Say that the code that setting `name` replaces was reached."""
        self.marks[name] = self.marks.get(name, 0) + 1

    @property
    def expected(self) -> tuple[str, ...]:
        """The settings that are not at their default."""
        return tuple(s.name for s in SETTINGS if s.applies_in(self.stage) and self.settings.changed(s.name))

    @property
    def missing(self) -> tuple[str, ...]:
        """Expected settings that were not reached."""
        return tuple(name for name in self.expected if not self.marks.get(name))

    def require(self) -> None:
        """Raise InconclusiveError if an expected setting was not reached."""
        if self.missing:
            raise InconclusiveError(
                f"the {self.settings.backend} path never reached the code that these settings replace: "
                f"{', '.join(self.missing)}; the model may not have that part, so leave them at their defaults"
            )
