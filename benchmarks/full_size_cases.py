"""The cases of `full_size.py`, and what came of one: plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from full_size_models import MODELS

DEPTHS = (2, 4)
"""Blocks that are compiled."""

COMMON = ("dtype=bfloat16", "matmul_precision=default", "attention.kernel=splash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a model on a mesh.

    Attributes:
        model: of `MODELS`. topology: `v6e:2x4`. mesh: (dp, sp, tp). blocks: splash's, of queries and keys; 0 for what
            parity takes where no setting says.
    """

    model: str
    topology: str
    mesh: tuple[int, int, int] = (1, 1, 8)
    blocks: tuple[int, int] = (2048, 2048)

    @property
    def name(self) -> str:
        return f"{self.model} {self.topology} {self.axes} {self.tiles}"

    @property
    def axes(self) -> str:
        named = zip(("dp", "sp", "tp"), self.mesh, strict=True)
        return ",".join(f"{axis}={n}" for axis, n in named if n > 1) or "one device"

    @property
    def tiles(self) -> str:
        return "x".join(map(str, self.blocks)) if any(self.blocks) else "default"

    @property
    def settings(self) -> tuple[str, ...]:
        mesh = ",".join(f"{axis}={n}" for axis, n in zip(("dp", "sp", "tp"), self.mesh, strict=True))
        q, kv = self.blocks
        return (*COMMON, f"mesh={mesh}", f"attention.block_q={q}", f"attention.block_kv={kv}")


def _cases() -> Sequence[Case]:
    """The most telling first: what time does not allow is left out from the end."""
    chips, meshes = ("v6e:2x4", "v5p:2x2x2"), ((1, 1, 8), (1, 8, 1), (2, 1, 4))
    tiles = ((2048, 2048), (0, 0), (3328, 2816))
    first = [Case(model=model, topology=chip) for chip in chips for model in MODELS]
    first += [Case(model=model, topology=chips[0], blocks=blocks) for blocks in tiles for model in MODELS]
    first += [Case(model=model, topology=chips[0], mesh=mesh) for mesh in meshes for model in MODELS]
    rest = [
        Case(model=model, topology=chip, mesh=mesh, blocks=blocks)
        for blocks in tiles
        for mesh in meshes
        for chip in chips
        for model in MODELS
    ]
    return tuple(dict.fromkeys((*first, *rest)))


CASES: Mapping[str, Case] = {case.name: case for case in _cases()}


@dataclass(frozen=True, kw_only=True)
class Program:
    """One compiled program, of a device.

    Attributes:
        refusal: the compiler's, in a person's words; empty where there is none. memory: bytes by `arguments`,
            `temporaries`, `output`, `code`, `aliased`. accessed: bytes. flops: of its products and kernels.
        collectives: kind -> (how many, bytes). seconds: that the compiler took.
    """

    refusal: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)
    accessed: int = 0
    flops: int = 0
    collectives: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one case at one depth.

    Attributes:
        failed: why there is no program, where parity could not tell; empty else. units: of the unobserved program,
            how many of them the observed one has, and how many it has a part of (-1: not counted).
    """

    case: str
    depth: int
    failed: str = ""
    plain: Program | None = None
    observed: Program | None = None
    units: tuple[int, int, int] = (0, 0, 0)

    @property
    def key(self) -> str:
        return f"{self.case} {self.depth}"

    def line(self) -> str:
        """For people."""
        if self.plain is None or self.observed is None:
            return f"{self.key}: {self.failed}"
        if self.plain.refusal or self.observed.refusal:
            return f"{self.key}: refused: {self.plain.refusal or self.observed.refusal}"
        more = self.observed.memory["temporaries"] / max(self.plain.memory["temporaries"], 1)
        read = self.observed.accessed / max(self.plain.accessed, 1)
        return (
            f"{self.key}: {self.units[1]} of {self.units[0]} units unchanged, {self.units[2]} cut, bytes accessed "
            f"{read:.2f} x, temporaries {more:.2f} x ({self.plain.seconds:.0f} and {self.observed.seconds:.0f} s)"
        )
