"""Meshes and sharding rules: where weights and activations lie on the candidate's devices.

Rules are data: a pattern over parameter names and the axes of its PartitionSpec, first match wins, no match is
replicated. The names are diffusers' (`to_q`, `ff.net.0.proj`), so the sets serve its transformers in general.
A dimension that a mesh axis does not divide is replicated instead.

A port for several chips makes a mesh of its own, splits its weights over it and names it in its calls. Inputs that
parity binds to a device would meet weights on eight of them, and JAX refuses to compile such a call. So what a port has
placed stays where it is, and what it is called with is bound to no device: JAX puts that wherever the rest of the
program is. What one step leaves on the port's devices goes over the host before the next: the latents of a video. A
port that takes `mesh` is placed by that setting, as parity's own candidate is.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from parity.cache import cache_dir
from parity.errors import UsageError
from parity.settings import Settings

AXES = ("dp", "sp", "tp")

Axis = str | tuple[str, ...] | None
Spec = tuple[Axis, ...]
Rule = tuple[str, Spec]
"""A pattern over parameter names, and the mesh axis (or axes) of each dimension."""

_ANYWHERE = r"(.*\.)?"


def _column(names: str) -> tuple[Rule, ...]:
    """Linear layers split by their outputs."""
    return (rf"{_ANYWHERE}({names})\.weight", ("tp", None)), (rf"{_ANYWHERE}({names})\.bias", ("tp",))


def _row(names: str) -> tuple[Rule, ...]:
    """Linear layers split by their inputs; their partial sums are added over the mesh, then the whole bias."""
    return ((rf"{_ANYWHERE}({names})\.weight", (None, "tp")),)


_COLUMN = (
    *_column("to_q|to_k|to_v"),
    *_column("add_q_proj|add_k_proj|add_v_proj"),
    *_column(r"ff\.net\.0\.proj"),
    *_column(r"ff_context\.net\.0\.proj"),
)
_PROJECTIONS = (*_row(r"to_out\.0"), *_row("to_add_out"))
_FC2 = (*_row(r"ff\.net\.2"), *_row(r"ff_context\.net\.2"))

RULES: Mapping[str, tuple[Rule, ...]] = {
    # Megatron's pairing: the first product of attention and of the feed-forward split by columns, the second by rows.
    "tp": (*_COLUMN, *_PROJECTIONS, *_FC2),
    # Second products whole on every device: no all-reduce after them, more memory. Of the feed-forward, of the
    # attention, of both.
    "tp_fc2_replicated": (*_COLUMN, *_PROJECTIONS),
    "tp_proj_replicated": (*_COLUMN, *_FC2),
    "tp_column": _COLUMN,
    # Weights whole on every device: data parallel over guidance branches (dp) and sequence parallel (sp) alone.
    "replicated": (),
}


@dataclass(frozen=True)
class Devices:
    """A mesh with the rules that place weights on it.

    Attributes:
        mesh: over the axes dp, sp, tp. rules: the set in use.
    """

    mesh: Mesh
    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, settings: Settings, devices: Sequence[jax.Device]) -> Self:
        """The mesh and the rules that the settings name, over as many devices."""
        # Auto: the compiler propagates shardings, as it does for a port that annotates its weights alone.
        auto = (AxisType.Auto,) * len(AXES)
        mesh = jax.make_mesh(settings.mesh_shape, AXES, axis_types=auto, devices=devices)
        return cls(mesh, RULES[settings.text("sharding")])

    @property
    def size(self) -> int:
        """How many they are."""
        return int(self.mesh.size)

    def ruled_by(self, rules: Mapping[str, tuple[Any, ...]]) -> Devices:
        """The same mesh with other rules; with its own where there are none.

        Raises:
            UsageError: a pattern is no regular expression, or names an axis that the mesh has not.
        """
        if not rules:
            return self
        for pattern, spec in rules.items():
            if unknown := _named(spec).difference(AXES):
                raise UsageError(f"`shard`: '{pattern}' names the axis {unknown}; the mesh has {', '.join(AXES)}")
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(f"`shard`: {error}") from None
        return replace(self, rules=tuple((pattern, tuple(spec)) for pattern, spec in rules.items()))

    def _rule(self, name: str) -> Rule | None:
        """The one that places a parameter."""
        return next((rule for rule in self.rules if re.fullmatch(rule[0], name)), None)

    def weight(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """Where a parameter lies."""
        rule = self._rule(name)
        return self.replicated if rule is None else self._sharding(shape, rule[1])

    def placement(self, weights: Iterable[tuple[str, tuple[int, ...]]]) -> str:
        """What the rules came to for these (name, shape), in one line; empty where tp is 1 and they do nothing.

        Raises:
            UsageError: there are rules, and none matches any parameter.
        """
        tp, placed = self.mesh.shape["tp"], list(weights)
        if tp == 1 or not placed:
            return ""
        if not self.rules:
            return f"tp={tp}, and every weight is whole on every device: the rule set has no rules"
        ruled = [(rule, shape) for name, shape in placed if (rule := self._rule(name)) is not None]
        split = sum("tp" in _named(self._sharding(shape, spec).spec) for (_, spec), shape in ruled)
        whole, used = len(ruled) - split, {pattern for (pattern, _), _ in ruled}
        idle = [pattern.removeprefix(_ANYWHERE) for pattern, _ in self.rules if pattern not in used]
        if not used:
            raise UsageError(
                f"tp={tp}, and no rule of the sharding set matches any of the {len(placed)} parameters "
                f"(such as '{placed[0][0]}'): choose another set, or tp=1"
            )
        told = [f"{split} of {len(placed)} parameters are split over tp={tp}"]
        if whole:
            told.append(f"{whole} that a rule names are whole, tp does not divide them")
        if idle:
            told.append(f"{len(idle)} of {len(self.rules)} rules match nothing: {', '.join(idle)}")
        return "; ".join(told)

    def batch(self, shape: tuple[int, ...]) -> NamedSharding:
        """Where a batched input lies: its first axis over dp."""
        return self._sharding(shape, ("dp",))

    def tokens(self, shape: tuple[int, ...]) -> NamedSharding:
        """Where a [batch, tokens, channels] activation lies: batch over dp, tokens over sp."""
        return self._sharding(shape, ("dp", "sp"))

    @property
    def platform(self) -> str:
        """Of its devices (`tpu`, `cpu`), which may be no devices of this machine."""
        return str(self.mesh.devices.flat[0].platform)

    def describe(self) -> tuple[str, ...]:
        """The devices, for people: `TPU v5 lite x 4`."""
        return (f"{self.mesh.devices.flat[0].device_kind} x {self.size}",)

    def put(self, x: jax.Array, sharding: NamedSharding) -> jax.Array:
        """An array, placed."""
        return jax.device_put(x, sharding)

    def place(self, name: str, x: jax.Array) -> jax.Array:
        """A parameter, where the rules say."""
        return self.put(x, self.weight(name, tuple(x.shape)))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def _sharding(self, shape: tuple[int, ...], spec: Spec) -> NamedSharding:
        ways = [math.prod(int(self.mesh.shape[name]) for name in _named((axis,))) for axis in spec]
        fits = [axis if size % parts == 0 else None for size, axis, parts in zip(shape, spec, ways, strict=False)]
        return NamedSharding(self.mesh, PartitionSpec(*fits))


def _named(spec: Iterable[Axis]) -> set[str]:
    """The axes of the mesh that a parameter is split over."""
    return {name for axis in spec for name in (axis if isinstance(axis, tuple) else (axis,)) if name is not None}


def make_devices(settings: Settings) -> Devices:
    """The mesh a candidate runs on.

    Raises:
        UsageError: it is larger than the devices there are, or JAX finds none.
    """
    need = math.prod(settings.mesh_shape)
    try:
        have = jax.device_count()
    except (AssertionError, RuntimeError) as error:  # AssertionError: what JAX has for a GPU's platform without a GPU
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise UsageError(
            f"JAX finds no device (JAX_PLATFORMS={platforms}): {str(error) or 'none of that platform is here'}; "
            "JAX_PLATFORMS=cpu runs the candidate on the CPU"
        ) from None
    if need > have:
        platform = jax.default_backend()
        hint = f"; on the CPU, XLA_FLAGS=--xla_force_host_platform_device_count={need} makes {need}"
        raise UsageError(
            f"mesh={settings.text('mesh')} needs {need} devices, and there "
            f"{'is' if have == 1 else 'are'} {have} ({platform}){hint if platform == 'cpu' else ''}"
        )
    return Devices.of(settings, jax.devices()[:need])


def use_compilation_cache() -> None:
    """Keep every compiled program: where JAX_COMPILATION_CACHE_DIR says, else in parity's cache folder."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache_dir() / "jax"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


class UnplacedDevices(Devices):
    """One device by the settings, and whatever others the port takes."""

    def put(self, x: jax.Array, sharding: NamedSharding) -> jax.Array:
        return jnp.asarray(np.asarray(x)) if x.committed else x

    def place(self, name: str, x: jax.Array) -> jax.Array:
        ours = {device.platform for device in x.devices()} == {self.platform}
        return x if ours else jnp.asarray(np.asarray(x))


def port_devices(settings: Settings) -> Devices:
    """The devices of a port.

    Raises:
        UsageError: a mesh that is larger than the devices there are.
    """
    devices = make_devices(settings)
    return devices if settings.changed("mesh") else UnplacedDevices(devices.mesh, devices.rules)
