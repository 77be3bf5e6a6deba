"""The settings of one side: a value for each setting of the catalogue, one type for both sides.

Either side takes any setting, so that a fault of the candidate can be reproduced on the reference alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parity.errors import UsageError
from parity.settings.catalogue import BITS, SETTINGS
from parity.settings.kinds import Backend, DeepCache, Value, deep_cache, mesh_shape, render
from parity.settings.lookup import BY_NAME, NEUTRAL


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
        return mesh_shape(self.text("mesh"))

    def require_stages(self, stages: Iterable[str]) -> None:
        """Refuse a setting of stages that are not run.

        Raises:
            UsageError: one is not at its default.
        """
        run = tuple(stages)
        for setting in SETTINGS:
            own = [place.partition(".")[0] for place in setting.places]
            if self.changed(setting.name) and not set(own) & set(run):
                wanted = ",".join(stage for stage in ("text", "transformer", "vae") if stage in (*run, own[-1]))
                raise UsageError(
                    f"'{setting.name}={self.as_text()[setting.name]}' is a setting of the {own[-1]} stage, which is "
                    f"not run; `--stages {wanted}` runs it"
                )

    @property
    def deep_cache(self) -> DeepCache | None:
        """The feature cache, if any."""
        return deep_cache(self.text("cache"))

    def replace(self, **changes: Value) -> Settings:
        """A copy with some values changed; keys with `.` written as `_`."""
        names = {setting.keyword: setting.name for setting in SETTINGS}
        return Settings(self.backend, {**self.values, **{names[k]: v for k, v in changes.items()}})

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
    return BY_NAME["attention.kernel"].takes[backend]


def differences(reference: Settings, candidate: Settings) -> tuple[Difference, ...]:
    """The settings in which two sides differ; where both keep the default of their own backend they do not."""
    return tuple(
        Difference(name, render(reference[name]), render(candidate[name]))
        for name in BY_NAME
        if reference[name] != candidate[name] and (reference.changed(name) or candidate.changed(name))
    )


def paired(reference: Settings, candidate: Settings) -> tuple[Settings, Settings]:
    """Both sides' settings as given, but that the reference's floors allow for the TPU that the candidate has."""
    if reference.changed("tpu"):
        return reference, candidate
    return reference.replace(tpu=candidate["tpu"]), candidate
