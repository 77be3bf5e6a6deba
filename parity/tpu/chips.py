"""TPU chips and the topologies that are made of them: what a program for them may use, and at what rate.

Sources. Google Cloud's pages on TPU v4, v5e, v5p, v6e and TPU7x, by chip: bfloat16 peak, memory, its bandwidth, and the
bandwidth of its links to other chips, all of them together. A time made of them is an estimate from below.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from parity.errors import UsageError

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One chip.

    Attributes:
        name: in a topology's name. dimensions: of its topologies. cores: devices that JAX has of it, which share what
            follows. flops: bfloat16, a second. memory: bytes. bandwidth: of its memory, bytes a second. links: bytes
            a second to other chips.
    """

    name: str
    dimensions: int
    cores: int
    flops: float
    memory: int
    bandwidth: float
    links: float


CHIPS = (
    Chip(name="v4", dimensions=3, cores=2, flops=275e12, memory=32 * GIB, bandwidth=1228e9, links=300e9),
    Chip(name="v5e", dimensions=2, cores=1, flops=197e12, memory=16 * GIB, bandwidth=819e9, links=200e9),
    Chip(name="v5p", dimensions=3, cores=1, flops=459e12, memory=95 * GIB, bandwidth=2765e9, links=600e9),
    Chip(name="v6e", dimensions=2, cores=1, flops=918e12, memory=32 * GIB, bandwidth=1640e9, links=448e9),
    Chip(name="tpu7x", dimensions=3, cores=2, flops=2307e12, memory=192 * GIB, bandwidth=7380e9, links=1200e9),
)

_NAME = re.compile(r"(?P<chip>[a-z0-9]+):(?P<bounds>\d{1,3}(x\d{1,3}){1,2})")


@dataclass(frozen=True, slots=True)
class Topology:
    """Chips in a grid: `v6e:2x4`. Made by `topology`.

    Attributes:
        chip: of which it is made. bounds: chips along each dimension.
    """

    chip: Chip
    bounds: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.bounds))}"

    @property
    def devices(self) -> int:
        """As JAX counts them."""
        return math.prod(self.bounds) * self.chip.cores


def topology(name: str) -> Topology:
    """Read a topology's name.

    Raises:
        UsageError: there is no such chip, or its topologies have another form.
    """
    found = _NAME.fullmatch(name)
    known = {chip.name: chip for chip in CHIPS}
    shown = name if len(name) < 40 else f"{name[:40]}..."
    if found is None:
        raise UsageError(f"--topology '{shown}': expected CHIP:AxB or CHIP:AxBxC, such as v6e:2x4 or v5p:2x2x1")
    if found["chip"] not in known:
        near = difflib.get_close_matches(found["chip"], known, n=1, cutoff=0.3)
        hint = f"; do you mean {near[0]}?" if near else ""
        raise UsageError(f"--topology '{shown}': unknown chip '{found['chip']}', known are {', '.join(known)}{hint}")
    chip = known[found["chip"]]
    bounds = tuple(map(int, found["bounds"].split("x")))
    if len(bounds) != chip.dimensions:
        raise UsageError(
            f"--topology '{shown}': topologies of {chip.name} have {chip.dimensions} dimensions, such as "
            f"{chip.name}:{'x'.join(['2', '2', '1'][: chip.dimensions])}"
        )
    if any(bound < 1 for bound in bounds) or bounds[0] % 2 or bounds[1] % 2:
        raise UsageError(
            f"--topology '{shown}': the compiler takes whole hosts of 2x2 chips, so the first two numbers are even, "
            f"such as {chip.name}:{'x'.join(['2', '2', '1'][: chip.dimensions])}; a mesh smaller than that leaves the "
            "other chips out"
        )
    return Topology(chip, bounds)
