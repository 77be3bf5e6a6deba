"""The figures of a compiled program: memory, products, kernels, collectives, and a time by the roofline.

Pure: from the compiler's answer alone. Everything is of one device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from parity.tpu.chips import Topology
from parity.tpu.collectives import Collective, collectives
from parity.tpu.hlo import Program, parse
from parity.tpu.products import PRODUCTS, Kernel, Product, kernels, products
from parity.tpu.request import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on a device.

    Attributes:
        arguments: weights and inputs. temporaries, output, code: as named. aliased: of the output, that reuse an
            argument. limit: of the chip.
    """

    arguments: int
    temporaries: int
    output: int
    code: int
    aliased: int
    limit: int

    @property
    def total(self) -> int:
        """All that a call holds at once, at most."""
        return self.arguments + self.temporaries + self.output + self.code - self.aliased


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Least seconds of a call, each by one of the chip's rates; an estimate: no program reaches all of them.

    Attributes:
        products: bfloat16 passes over the peak. memory: bytes accessed over the bandwidth. links: bytes of the
            collectives over the links.
    """

    products: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        """The longest of them."""
        return max(self.products, self.memory, self.links)

    @property
    def bound(self) -> str:
        """Which it is."""
        named = {"products": self.products, "memory": self.memory, "links": self.links}
        return max(named, key=lambda name: named[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one program.

    Attributes:
        sites: observed in it. program: parsed. memory, products, kernels, collectives, roofline: see there.
        flops: of its products and kernels, each pass counted once. accessed: bytes read and written, by the compiler's
            count. fusions: number of them, and of those with a product.
    """

    sites: str
    program: Program
    memory: Memory
    products: tuple[Product, ...]
    kernels: tuple[Kernel, ...]
    collectives: tuple[Collective, ...]
    flops: int
    accessed: int
    fusions: tuple[int, int]
    roofline: Roofline


def figures(sites: str, answer: Answer, topology: Topology) -> Figures:
    """Read a program's figures.

    Args:
        sites: that are observed in it. answer: not refused.

    Raises:
        HloError: its text cannot be read.
    """
    program, modules = parse(answer.text), frozenset(answer.modules)
    found, calls, sent = products(program, modules), kernels(program, modules), collectives(program)
    chip, share = topology.chip, topology.chip.cores
    passes = sum(p.flops * p.passes for p in found) + sum(k.flops for k in calls)
    accessed = round(answer.cost["bytes"])
    return Figures(
        sites=sites,
        program=program,
        memory=Memory(**answer.memory, limit=chip.memory // share),
        products=found,
        kernels=calls,
        collectives=sent,
        flops=sum(p.flops for p in found) + sum(k.flops for k in calls),
        accessed=accessed,
        fusions=_fusions(program),
        roofline=Roofline(
            products=passes / (chip.flops / share),
            memory=accessed / (chip.bandwidth / share),
            links=sum(c.bytes for c in sent) / (chip.links / share),
        ),
    )


def _fusions(program: Program) -> tuple[int, int]:
    """All fusions that are executed, and those with a product."""
    units = [(computation, unit) for computation, unit in program.units() if unit.opcode == "fusion"]
    kinds = [Counter(i.opcode for _, i in program.within(computation, unit)) for computation, unit in units]
    return len(units), sum(any(kind[name] for name in PRODUCTS) for kind in kinds)
