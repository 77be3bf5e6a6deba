"""TPU chips and the topologies that are made of them: `v6e:2x4`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from parity.errors import UsageError

GIB = 1 << 30

# Name -> dimensions of its topologies, devices that JAX has of a chip, and bytes of memory that these devices share
# (Google Cloud's pages on each chip).
CHIPS = {
    "v4": (3, 2, 32 * GIB),
    "v5e": (2, 1, 16 * GIB),
    "v5p": (3, 1, 95 * GIB),
    "v6e": (2, 1, 32 * GIB),
    "tpu7x": (3, 2, 192 * GIB),
}


@dataclass(frozen=True, slots=True)
class Topology:
    """Chips in a grid.

    Attributes:
        devices: as JAX counts them. memory: bytes of a device.
    """

    devices: int
    memory: int


def topology(name: str) -> Topology:
    """Read a topology's name.

    Raises:
        UsageError: there is no such chip, or its topologies have a different form.
    """
    found = re.fullmatch(r"([a-z0-9]+):(\d{1,3}(?:x\d{1,3}){1,2})", name)
    if found is None or found[1] not in CHIPS:
        raise UsageError(
            f"--topology '{name[:40]}': expected CHIP:AxB such as v6e:2x4; known chips: {', '.join(CHIPS)}"
        )
    dimensions, cores, memory = CHIPS[found[1]]
    bounds = [int(bound) for bound in found[2].split("x")]
    if len(bounds) != dimensions or not all(bounds) or bounds[0] % 2 or bounds[1] % 2:
        raise UsageError(
            f"--topology '{name}': {found[1]} takes whole hosts of 2x2 chips in {dimensions} dimensions, such as "
            f"{found[1]}:{'x'.join(['2', '2', '1'][:dimensions])}; a smaller mesh leaves chips out"
        )
    return Topology(math.prod(bounds) * cores, memory // cores)
