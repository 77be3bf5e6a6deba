"""Meshes and sharding rules: where weights and activations lie on the candidate's devices.

Rules are data: a pattern over parameter names and the axes of its PartitionSpec, first match wins, no match is
replicated. The names are diffusers' (`to_q`, `ff.net.0.proj`), so the sets serve its transformers in general.
A dimension that a mesh axis does not divide is replicated instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from parity.errors import UsageError
from parity.settings import Settings

AXES = ("dp", "sp", "tp")

_COLUMN = (
    (r"(.*\.)?(to_q|to_k|to_v|add_q_proj|add_k_proj|add_v_proj)\.weight", ("tp", None)),
    (r"(.*\.)?(to_q|to_k|to_v|add_q_proj|add_k_proj|add_v_proj)\.bias", ("tp",)),
    (r"(.*\.)?ff(_context)?\.net\.0\.proj\.weight", ("tp", None)),
    (r"(.*\.)?ff(_context)?\.net\.0\.proj\.bias", ("tp",)),
)
_ROW = (
    (r"(.*\.)?(to_out\.0|to_add_out)\.weight", (None, "tp")),
    (r"(.*\.)?ff(_context)?\.net\.2\.weight", (None, "tp")),
)

RULES: Mapping[str, tuple[tuple[str, tuple[str | None, ...]], ...]] = {
    # Megatron's pairing: the first product of attention and of the feed-forward split by columns, the second by rows.
    "tp": _COLUMN + _ROW,
    # The second products whole on every device: no all-reduce after them, more memory.
    "tp_fc2_replicated": _COLUMN,
}


@dataclass(frozen=True)
class Devices:
    """A mesh with the rules that place weights on it.

    Attributes:
        mesh: over the axes dp, sp, tp. rules: the set in use, compiled.
    """

    mesh: Mesh
    rules: tuple[tuple[re.Pattern[str], tuple[str | None, ...]], ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(dp, sp, tp)."""
        dp, sp, tp = (int(self.mesh.shape[axis]) for axis in AXES)
        return dp, sp, tp

    def weight(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """Where a parameter lies."""
        for pattern, spec in self.rules:
            if pattern.fullmatch(name):
                return self._sharding(shape, spec)
        return self.replicated

    def batch(self, shape: tuple[int, ...]) -> NamedSharding:
        """Where a batched input lies: its first axis over dp."""
        return self._sharding(shape, ("dp",))

    def tokens(self, shape: tuple[int, ...]) -> NamedSharding:
        """Where a [batch, tokens, channels] activation lies: batch over dp, tokens over sp."""
        return self._sharding(shape, ("dp", "sp"))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def _sharding(self, shape: tuple[int, ...], spec: tuple[str | None, ...]) -> NamedSharding:
        fits = [
            axis if axis is not None and i < len(shape) and shape[i] % self.mesh.shape[axis] == 0 else None
            for i, axis in enumerate(spec[: len(shape)])
        ]
        return NamedSharding(self.mesh, PartitionSpec(*fits))


def make_devices(settings: Settings) -> Devices:
    """The mesh a candidate runs on.

    Raises:
        UsageError: it is larger than the devices there are.
    """
    shape = settings.mesh_shape
    need, have = shape[0] * shape[1] * shape[2], jax.device_count()
    if need > have:
        platform = jax.default_backend()
        hint = f"; on the CPU, XLA_FLAGS=--xla_force_host_platform_device_count={need} makes {need}"
        raise UsageError(
            f"mesh={settings.text('mesh')} needs {need} devices, and there "
            f"{'is' if have == 1 else 'are'} {have} ({platform}){hint if platform == 'cpu' else ''}"
        )
    # Auto: the compiler propagates shardings, as it does for a port that annotates its weights alone.
    auto = (AxisType.Auto,) * len(AXES)
    mesh = jax.make_mesh(shape, AXES, axis_types=auto, devices=jax.devices()[:need])
    rules = RULES[settings.text("sharding")]
    return Devices(mesh, tuple((re.compile(pattern), spec) for pattern, spec in rules))
