"""Sides, and what is asked of them as plain data: it crosses a process border, so nothing here is torch's or jax's.

`Spec` says what a side is, `Plan` what is observed of it. Torch, torchax, a port and a golden on disk are sides
(`Side`); so is one whose work is done in another process (`parity.paths.worker.process`). What a comparison does is
written against these protocols alone.

    side = worker.open(spec)
    for step in side.observe(Plan(sites=plan)):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np

from parity.hooks.sites import SitePlan
from parity.paths.port.settings import PortInfo
from parity.records import LOOP, LOOP_STAGE, Array as Array, Facts, Key, StepRecords
from parity.settings.chips import NO_CHIP

T = TypeVar("T")

VAE_INPUT = ".latents"
"""The VAE's input among a side's explicit ones: it has no guidance branch."""

Role = Literal["reference", "candidate"]

State = Mapping[str, np.ndarray]
"""What a step starts from: `latents`, and what the family's sampler carries beside them."""

Forced = Callable[[int], State | None]
"""Step -> the state it must start from, or None for its own."""


Given = Mapping[str, Array]
"""Explicit inputs by name: `cond.encoder_hidden_states`."""


def split_branches(named: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """`BRANCH.NAME` -> value, as branch -> name -> value."""
    found: dict[str, dict[str, T]] = {}
    for name, x in named.items():
        branch, _, keyword = name.partition(".")
        found.setdefault(branch, {})[keyword] = x
    return found


DOUBT = "doubt"
"""Behind a followed site that differs, and may do so by what differs before it."""
LEFT_ALONE = "left"
"""Behind a site that a followed step does not judge, as what it is made of cannot be the candidate's values."""
TURNED = "turned"
"""Behind a site that a followed step does not judge, as it has the reference's values in another order."""
UNREAD = "unread"
"""The same of one that is another thing: what comes next is not made of it."""


def state_of(step: StepRecords, when: str) -> State:
    """The state a step started from (`before`) or left (`after`), from its records; empty where they hold none."""
    values = ((r.key, r.value) for r in step.records if r.key.module == LOOP and r.key.port.endswith(f".{when}"))
    return {key.port.rpartition(".")[0]: np.asarray(x) for key, x in values if isinstance(x, np.ndarray)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where both sides of a comparison come from.

    Attributes:
        model: tiny name, folder or hub name; the reference port as named where no model stands behind it.
        steps: denoising steps. seed: of the initial noise.
        prompt: in place of the model's own. stage1: a port's file of embeddings in place of a prompt.
        inputs: file of tensors by argument name, for a transformer that no family knows.
        alone: whether a reference port brings its own inputs, and no model stands behind it.
        stage, part: which stage of a generation is compared, and which encoder of a text stage.
    """

    model: str
    steps: int = 1
    seed: int = 0
    prompt: str | None = None
    stage1: str | None = None
    inputs: str | None = None
    alone: bool = False
    stage: str = LOOP_STAGE
    part: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """What a side starts from, made by what runs before it.

    Attributes:
        inputs: embeddings, or a stage's own inputs; None to encode the prompt. beside: those of the runs that measured
            the floors of the stage before, by their names. tokens: what the text stage encoded; empty where it was not
            run.
    """

    inputs: Given | None = None
    beside: Mapping[str, Given] = field(default_factory=dict)
    tokens: Given = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a side is.

    Attributes:
        role: which side. source: model and inputs. settings: all of them as text, by name.
        port: `FILE:FUNCTION` of the port that runs in place of parity's own path; None for parity's own.
        option: it was given with: `--reference-port`, `--port`.
        encode: settings that a prompt is encoded with, as text; the encoders' dtype is the reference's on both sides.
        start: what it starts from.
        tensors: a reference port's own inputs by argument name, for a candidate that no model stands behind.
        noise: the initial latents to start from, None to draw them from the seed.
        named: whether its facts hold what a golden's provenance needs beyond a comparison's: the names that a port in
            JAX taps, which takes a trace; fingerprints of the weights of a stage outside the loop.
        run: name of the run that measures floors which this side is; empty for none.
    """

    role: Role
    source: Source
    settings: Mapping[str, str]
    port: str | None = None
    option: str = ""
    encode: Mapping[str, str] = field(default_factory=dict)
    start: Start = field(default_factory=Start)
    tensors: Given | None = None
    noise: Array | None = None
    named: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is observed.

    Attributes:
        sites: of the transformer; None for the loop's own values alone.
        floors: whether floors are measured beside (of a reference alone). chip: the TPU, the candidate's, whose
            elementary functions they allow for; the same in all that is asked of a side.
        forced: whether the runs that measure floors start each step from this side's own latents.
        follow: values of the other side by their keys, of step 0 of the loop: those of this side, a reference, give way
            to the other's, in its step and in those that measure its floors, and what is handed out is how far each was
            from it (`parity.paths.follow`), in place of the step. far: whether a value gives way however far it is:
            something failed, and what comes behind is looked for. lies: factors of the parameters of a module that a
            port holds otherwise, 1 for another order: values that lie so too stay. own_order: whether the candidate's
            masks may say that its rows stand in another order. weighed: modules of which the candidate has other
            weights.
    """

    sites: SitePlan | None = None
    floors: bool = False
    chip: str = NO_CHIP
    forced: bool = False
    follow: Mapping[Key, Array] = field(default_factory=dict)
    far: bool = False
    lies: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    own_order: bool = False
    weighed: frozenset[str] = frozenset()


BESIDE = "beside "
"""Before the name of a run: what a stage outside the loop makes of that run's inputs (`Start.beside`)."""

Outputs = Given
"""What a run came to: the loop's final `latents` [B, C, T, H, W], or a stage's `cond.prompt_embeds`, `.frames`."""


@dataclass
class Ends:
    """What a side came to; no part of a golden.

    Attributes:
        runs: what each run came to: `""` is the side's own, others measured its floors.
        names: modules that the side named, below the model. ran: attention site -> the function that computed it.
        idle: why a pass would not rest on what the side's code installed.
    """

    runs: Mapping[str, Outputs] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    ran: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()

    @property
    def own(self) -> Outputs:
        return self.runs[""]

    @property
    def beside(self) -> dict[str, Outputs]:
        """Of the other runs."""
        return {name: x for name, x in self.runs.items() if name}


class Side(Protocol):
    """See the module's docstring.

    Attributes:
        spec: what it is.
    """

    spec: Spec

    def facts(self) -> Facts:
        """What it is about to run with. Nothing is computed but fingerprints."""
        ...

    def observe(
        self, plan: Plan, *, start: State | Forced | None = None, steps: tuple[int, int] | None = None
    ) -> Iterator[StepRecords]:
        """The records of its steps, one step at a time, each computed when it is asked for (or just before).

        Args:
            start: the state before the first step; or what gives each step its state.
            steps: from the first to before the second; None for all.

        Raises:
            UsageError: the side's own code failed. InconclusiveError: a chosen site never fired.
        """
        ...

    def ends(self, leave: str | None = None) -> Ends:
        """What it came to by the last step that it was observed in, and the runs that measured its floors.

        Args:
            leave: folder in which the side leaves its embeddings and latents in the ports' conventions; None for not.
        """
        ...

    def close(self) -> None:
        """Let go of its weights."""
        ...


@dataclass(frozen=True, slots=True)
class Pair(Generic[T]):
    """Something of both sides."""

    reference: T
    candidate: T


class Opener(Protocol):
    """Who loads sides of one role: a worker, or this process."""

    def port(self, option: str, text: str) -> PortInfo:
        """Import a port."""
        ...

    def open(self, spec: Spec) -> Side:
        """A side of this spec."""
        ...


class Openers(Protocol):
    """Openers by role: `parity.paths.worker.process.Workers`, or this process for the library form and tests."""

    def of(self, role: Role) -> Opener: ...
