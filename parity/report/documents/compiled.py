"""The document of `parity compile`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from parity.golden.strict import Number

Name = Literal["unobserved", "observed", "against"]


class Refusal(TypedDict):
    """Why the compiler refuses a program. memory: `hbm`, `vmem`, `smem`, or empty. needed, limit: bytes, 0 unknown."""

    sentence: str
    memory: str
    kernel: str
    module: str
    needed: int
    limit: int
    advice: str
    said: str


class Memory(TypedDict):
    """Bytes on a device; `limit`: of the chip."""

    arguments: int
    temporaries: int
    output: int
    code: int
    aliased: int
    total: int
    limit: int


class Products(TypedDict):
    """The matrix products of a module in one precision."""

    module: str
    precision: str
    count: int
    flops: Number


class Kernel(TypedDict):
    """Calls of a kernel."""

    kernel: str
    module: str
    count: int
    flops: Number


class Collective(TypedDict):
    """Collectives of a kind, and the bytes that a device sends."""

    kind: str
    count: int
    bytes: int


class Roofline(TypedDict):
    """An estimate of the least time: seconds by each of the chip's rates; `seconds`: the longest; `bound`: its name."""

    seconds: Number
    bound: str
    products: Number
    memory: Number
    links: Number


class Program(TypedDict):
    """A program: why it does not compile, or its figures."""

    program: Name
    sites: str
    candidate: list[str]
    compiles: bool
    seconds: Number
    cached: bool
    refusal: Refusal | None
    memory: NotRequired[Memory]
    flops: NotRequired[Number]
    bytes_accessed: NotRequired[int]
    fusions: NotRequired[int]
    product_fusions: NotRequired[int]
    products: NotRequired[list[Products]]
    kernels: NotRequired[list[Kernel]]
    collectives: NotRequired[list[Collective]]
    roofline_estimate: NotRequired[Roofline]


class Units(TypedDict):
    """Fusions with a product, in either program, those that are the same in both, and those that the second program has
    a part of: the same operations, up to or from a tensor that it writes to memory."""

    before: int
    after: int
    same: int
    cut: int


class Changed(TypedDict):
    """Fusions of a module that are cut, or not the same."""

    module: str
    count: int


class Effect(TypedDict):
    """What another program differs in."""

    product_units: Units
    cut: list[Changed]
    changed: list[Changed]
    bytes_accessed_ratio: Number
    extra_bytes_accessed: int
    extra_temporaries: int
    extra_code: int


class Compiled(TypedDict):
    """`parity compile --json`. port: `FILE:FUNCTION` in the candidate's place, null for parity's own. stage: what is
    compiled, `transformer`, `vae` or a text encoder's folder. calls: that it makes for one output; its largest is
    compiled."""

    format: Literal[1]
    compiles: bool
    model: str
    port: str | None
    stage: str
    calls: int
    topology: str
    devices: int
    device: str
    versions: dict[str, str]
    settings: dict[str, str]
    programs: list[Program]
    observer_effect: Effect | None
    against: Effect | None
