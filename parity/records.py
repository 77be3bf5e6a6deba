"""What was observed: keys, moments and records, as plain frozen data.

A record says what one value looked like at one place of one run. It is small whatever the value's size (moments
and a sketch), so that the records of an 8-billion-parameter model fit in a file, and it holds the value itself
only where that was asked for. Everything later (comparing, judging, explaining) works on these types alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

Kind = Literal["tensor", "none", "scalar"]
Scalar = bool | int | float | str

PORT = "port"
"""The backend of a candidate that is a user's own code: its modules and parameters are its own."""

LOOP = "loop"
"""Module part of the sites of the denoising loop's own values, such as `loop:noise_pred`."""

MODELS = ("", "transformer_2")
"""Modules that are the whole model of a step: one whose modules have no name before theirs, or a pipeline's second."""

SCHEDULE = "schedule"
"""Module of the records of a whole schedule, in the first step of a generation."""

LOOP_STAGE = "transformer"
"""The stage that the denoising loop runs, in which nearly every site is."""

AFTER = "vae"
"""The stage that goes on from the loop's latents."""

OUTSIDE = -1
"""The step of what happens outside the loop."""

FRAMES = "decode:frames"
"""What a script's processor makes of what was decoded."""

ATTENTION = "attention"
"""Last part of the pseudo-module that stands for one attention call: `<module>.attention` with ports `in.query`,
`in.key`, `in.value` and `out`."""

PADDING = "padding"
"""Suffix of a port whose record covers only rows that no valid token reads; such records never decide."""

READ = "read"
"""Suffix of a port whose record covers what is made use of: the rows of a joint sequence whose keys some query reads,
what a picture shows of frames. Beside the record of the whole, in whose place it counts where the whole differs and
this does not."""

SET = "set"
"""Suffix of a port whose record holds sums over the rows that are read, whatever their number and order."""


BLOCK = r"(?<=\.)(\d+|\*)(?=\W|$)"
"""The number of a block in a path, or the star that stands for any."""


def is_attention(module: str) -> bool:
    """Whether it stands for the attention calls of a module's own code, which are no module."""
    return module.rpartition(".")[2] == ATTENTION


def any_block(place: str) -> str:
    """A module or a site, whichever block it is in: `blocks.*.attn:out`."""
    return re.sub(BLOCK, "*", place)


def above(module: str) -> Iterable[str]:
    """The modules around this one, the top one last; none for the loop."""
    while module and module != LOOP:
        module = module.rpartition(".")[0]
        yield module


def caller_of(module: str) -> str:
    """The module that calls this one; a list of modules, as that of an output projection, calls none."""
    above, _, name = module.rpartition(".")
    return above.rpartition(".")[0] if name.isdigit() else above


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names one observation; the same key in two runs is the same place.

    Attributes:
        stage: part of the generation: `text`, `transformer` or `vae`.
        step: denoising step from 0; -1 for what happens outside the loop (stages `text`, `vae`).
        branch: guidance branch: `cond`, `uncond`, or `""` for values of the loop that belong to no branch.
        site: `module:port`, such as `transformer_blocks.0.attn:in.hidden_states` or `loop:noise_pred`.
        call: how many times this module had been called before within the same step and branch.
    """

    stage: str
    step: int
    branch: str
    site: str
    call: int = 0

    @property
    def module(self) -> str:
        """The module path, without the port."""
        return self.site.partition(":")[0]

    @property
    def port(self) -> str:
        """`in.<name>`, `out`, `out.<index>`, or the name of a loop value."""
        return self.site.partition(":")[2]

    @property
    def is_input(self) -> bool:
        return self.port.split(".", 1)[0] == "in"

    @property
    def is_argument(self) -> bool:
        """Whether it is what a whole model is given."""
        return self.is_input and self.module in MODELS

    @property
    def is_padding(self) -> bool:
        return self.port.endswith("@" + PADDING)

    @property
    def is_read(self) -> bool:
        return self.port.endswith("@" + READ)

    @property
    def is_set(self) -> bool:
        return self.port.endswith("@" + SET)

    @property
    def read(self) -> Key:
        """The key of what is made use of, beside this one of the whole."""
        return replace(self, site=f"{self.site}@{READ}")

    @property
    def is_apart(self) -> bool:
        """Whether the record never decides by itself: padded rows, and what is read of the whole beside it."""
        return self.is_padding or self.is_read or self.is_set

    @property
    def is_part(self) -> bool:
        """Whether the record covers a part of the tensor's rows, such as `@image`."""
        return "@" in self.port

    def __str__(self) -> str:
        step = f" step {self.step}" if self.step >= 0 else ""
        where = f"{self.stage}{step}" + (f" {self.branch}" if self.branch else "")
        return f"{where} {self.site}" + (f" call {self.call}" if self.call else "")


@dataclass(frozen=True, slots=True)
class Moments:
    """Order-blind statistics of a tensor: equal moments with unequal sketches mean permuted values.

    Attributes:
        count: number of elements observed (of the rows that count, where rows were selected).
        nan: number of NaNs. inf: number of infinities.
        min, max, mean, l2: over the finite elements, computed in float32 or wider; 0.0 where there are none.
    """

    count: int
    nan: int
    inf: int
    min: float
    max: float
    mean: float
    l2: float


@dataclass(frozen=True, slots=True)
class Record:
    """One observation.

    Attributes:
        key: where.
        kind: `tensor`, `none` (the value was None) or `scalar` (a bool, int, float or string).
        shape: the tensor's own shape; `()` for the other kinds.
        dtype: the tensor's dtype in numpy's names (`bfloat16` included), the Python type's name for a scalar.
        rows: name of the row frame the sketch is taken in, `""` for the tensor's own rows. A frame puts tokens in
            one order for both sides and leaves padded rows out, so shapes may differ and sketches still compare.
        frame: the (rows, channels) the sketch was taken over; equals the tensor's own view where `rows` is empty.
        moments: order-blind statistics, for tensors.
        sketch: linear fingerprint, float32 [<= 2048] (see `parity.sketch`); None where only moments are held.
        value: the tensor itself where it was asked for, or the scalar.
    """

    key: Key
    kind: Kind
    shape: tuple[int, ...] = ()
    dtype: str = ""
    rows: str = ""
    frame: tuple[int, int] = (0, 0)
    moments: Moments | None = None
    sketch: np.ndarray | None = None
    value: np.ndarray | Scalar | None = None

    @property
    def nonfinite(self) -> int:
        """How many NaNs and infinities it holds, as far as they were counted."""
        return 0 if self.moments is None else self.moments.nan + self.moments.inf


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor between processes, or on disk.

    Attributes:
        values: 16-bit floats, which numpy lacks or computes badly in, as float32; a golden's integers too.
        dtype: of the tensor, in numpy's names (`bfloat16` included).
    """

    values: np.ndarray
    dtype: str


@dataclass(frozen=True, slots=True)
class Floor:
    """The difference that rounding alone explains at one site, as absolute norms in the value's own units.

    Attributes:
        l2: of the whole tensor.
        bins: of each row bin, float32 [<= 64], or None where the site has no bins.
        linf: of the largest element; NaN where values are not held.
    """

    l2: float
    bins: np.ndarray | None = None
    linf: float = float("nan")


@dataclass(frozen=True, slots=True)
class StepRecords:
    """All records of one denoising step, in execution order, with their floors.

    Attributes:
        step: the step's index; -1 for what happens before the loop.
        records: in the order in which they were observed.
        floors: by key; empty where none were measured.
    """

    step: int
    records: Sequence[Record]
    floors: Mapping[Key, Floor] = field(default_factory=dict)

    def where(self, kept: Callable[[Key], bool]) -> StepRecords:
        """The step with the records, and the floors, of these keys alone."""
        records = tuple(r for r in self.records if kept(r.key))
        return StepRecords(self.step, records, {key: floor for key, floor in self.floors.items() if kept(key)})

    def at(self, step: int) -> StepRecords:
        """The same as of another step."""
        records = tuple(replace(r, key=replace(r.key, step=step)) for r in self.records)
        return StepRecords(step, records, {replace(key, step=step): floor for key, floor in self.floors.items()})

    def renamed(self, name: Callable[[Key], Key]) -> StepRecords:
        """The step with its records under other keys; floors keep theirs."""
        return replace(self, records=tuple(replace(r, key=name(r.key)) for r in self.records))


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where records come from: everything that decides whether two goldens are comparable at all.

    Attributes:
        side: `reference` or `candidate`: the role it was recorded in.
        backend: `torch` or `torchax`, or `port`: a candidate of the user's own code.
        model: the model's name as given.
        settings: every setting by its name, as strings.
        seed: of the initial noise.
        steps: number of denoising steps of the run.
        weights: fingerprint by parameter name (see `parity.golden.fingerprint`).
        inputs: fingerprint by name of the explicit inputs: prompt embeddings, masks, initial noise.
        versions: by package. devices: what it ran on, by process.
        command: the command line, without paths of the machine.
        commit: git commit of the model code, `""` if unknown.
        modules: module path -> parent's path, the module tree (the root is `""`).
        shard: (index, count) of the process that recorded it: where count > 1, sketches and moments are of the
            shard's own elements, and reading `WHERE`, the folder above, adds the shards up.
        idle: why a pass would not rest on what a port installed, a sentence each. sites: those that were asked for;
            empty where nobody knows. chip: the TPU whose elementary functions the floors allow for; empty for none.
    """

    side: str
    backend: str
    model: str
    settings: Mapping[str, str]
    seed: int
    steps: int
    weights: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    command: str = ""
    commit: str = ""
    modules: Mapping[str, str] = field(default_factory=dict)
    shard: tuple[int, int] = (0, 1)
    idle: tuple[str, ...] = ()
    sites: str = ""
    chip: str = ""


# --- a side before its first forward


@dataclass(frozen=True, slots=True)
class Schedule:
    """A side's schedule, as it will be walked.

    Attributes:
        timesteps: float64 [steps].
        sigmas: float64 [steps + 1], the standard deviation of the noise before each step and after the last.
        step_index: the scheduler's own step counter before the first step; None is what it should be.
        end: what the last sigma should be.
    """

    timesteps: np.ndarray
    sigmas: np.ndarray
    step_index: int | None
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """A side before its first forward: what preflight compares. Weights appear as fingerprints alone.

    Attributes:
        weights: parameter name -> (shape, content fingerprint of its values widened to float32 or wider).
        dtypes: parameter name -> dtype the path computes with.
        inputs: `cond.encoder_hidden_states` -> values, float32, and its own dtype. tables: rotary tables by name.
            provenance: of its records.
        noise: initial latents, float32. schedule: timesteps, sigmas, the scheduler's step counter; neither for a stage
            outside the loop.
        own: whether it is a port, which may name its parameters as it likes.
        encoded: whether its embeddings are those of its own text stage, which has been judged.
        placement: how the weights lie on the devices, in one line; empty where there is nothing to say.
        grid: frames, height and width of the image tokens; None where they have no order.
        checks: (name, verdict, detail) of what is to be known of its inputs or its port.
        tensors: a reference port's own inputs by argument.
        lacks: setting -> why it has no meaning for this model.
        compiled: whether a compiler makes one program of its calls, which is another where they are observed.
        trunk: the child of its module that holds the blocks; empty where the module itself does.
        narrow: share of its floating weights in parameters that hold numbers of 16 bits alone, whatever their dtype.
    """

    inputs: Mapping[str, Array]
    provenance: Provenance
    weights: Mapping[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, np.ndarray] = field(default_factory=dict)
    noise: np.ndarray = field(default_factory=lambda: np.zeros(0))
    schedule: Schedule = Schedule(np.zeros(0), np.zeros(0), None)
    own: bool = False
    encoded: bool = False
    placement: str = ""
    grid: tuple[int, int, int] | None = None
    checks: tuple[tuple[str, str, str], ...] = ()
    tensors: Mapping[str, Array] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    compiled: bool = False
    trunk: str = ""
    narrow: float = 0.0
