"""What a comparison found, as plain data: the reports read these types and compute nothing.

The fields are those of the JSON document, which `parity.report.formats.json` writes from them. What a run found is
kept besides as it is (`result_text`), so that nothing has to find it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from parity.compare.reason import NAN, UNKNOWN, Birth, Distance, Note, Problem, Reason, sentence
from parity.errors import MalformedError
from parity.records import Key
from parity.settings import Difference as SettingDifference

Verdict = Literal["pass", "fail", "inconclusive"]
CheckName = Literal["logic", "precision"]
Failed = Literal["preflight", "logic", "precision"]
SiteVerdict = Literal["pass", "fail", "harmless", "ignored", "not compared", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that differ in the same way.

    Attributes:
        kind: which way, in two words; empty for what is no difference. how: the same in a sentence. names: of the
            parameters. notes: what is to be added of each; empty for nothing. firm: whether it fails the check unless
            the sites show that a port holds them so. everywhere: those that differ in all blocks, as a merged adapter's
            do: one that differs in one block alone may agree too, where the inputs do not exercise it.
    """

    kind: str
    how: str
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    firm: bool = False
    everywhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """One preflight check.

    Attributes:
        check: what was compared: `weights`, `timesteps`, ...
        verdict: `pass`, `fail`, or `explained` where a declared differing setting accounts for it.
        detail: one line with the numbers.
        computed: whether it fails by numbers of both sides, so that the run fails with it; else the two are not
            comparable.
        at: parameters that differ. near: `rounding` where they do by no more than that to 16 bits, or the dtype to
            which the candidate's are the reference's rounded; else empty. by: the candidate's settings that it may come
            from.
        groups: of all parameters that are not equal, by how they differ. of: how many the reference has.
    """

    check: str
    verdict: Literal["pass", "fail", "explained"]
    detail: str
    computed: bool = False
    at: tuple[str, ...] = ()
    near: str = ""
    by: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    of: int = 0


@dataclass(frozen=True, slots=True)
class StepDiff:
    """One denoising step.

    Attributes:
        step: from 0. timestep, sigma, dt: (reference, candidate) of each.
        noise_pred, latents: guided noise prediction; latents after the step.
        latents_before: latents the step started from.
        branches: noise prediction of each guidance branch by name.
        bits: leading bits in which noise_pred agrees: -log2 of its relative L2, from 0 to `bits_of`.
        bits_of: significant bits of its dtype on the coarser side: 24 for float32, 8 for bfloat16; 0 if unknown.
    """

    step: int
    timestep: tuple[float, float]
    sigma: tuple[float, float]
    dt: tuple[float, float]
    noise_pred: Distance
    latents: Distance
    latents_before: Distance
    branches: dict[str, Distance] = field(default_factory=dict)
    bits: float = NAN
    bits_of: int = 0


@dataclass(frozen=True, slots=True)
class SiteDiff:
    """One site of one step and branch.

    Attributes:
        key: where. distance: how far.
        cosine: of the two values; NaN where unknown. max_abs: largest absolute difference, NaN unless values are held.
        shapes, dtypes: (reference, candidate). nonfinite: (reference, candidate) count of NaN and Inf.
        linf_ratio: the largest absolute difference over its floor; NaN unless values and their floor are held.
        peak: the worst ratio to its floor of a row bin or, where values are held, of the largest element; 0 for none.
            Row bins count beside held values, so that asking for values never lets through what was seen without.
        bins: ratio to the floor of each row bin; empty where there are none, or they are not kept.
        frame, rows: the (rows, channels) that were compared, and the name of the row frame they were taken in.
        local: how far it is from what the reference makes of the candidate's values; NaN where it was not measured.
        birth: how the divergence starts here; None where it does not start here.
        verdict: `pass`; `fail`; `harmless` (a declared setting explains it and the outputs stay within their floors);
            `ignored` (padded rows, which never decide); `not compared` (inside a port, where it does not line up on
            both sides; its note says how); `inconclusive` (it differs and has no floor).
        note: what else is to be said, such as `None against a tensor`.
        called: the candidate's name of the port, where it was paired under another than the reference's; else empty.
        same: the first site of its step and branch where both sides have just these values; empty for itself.
    """

    key: Key
    distance: Distance
    cosine: float = NAN
    max_abs: float = NAN
    linf_ratio: float = NAN
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    dtypes: tuple[str, str] = ("", "")
    nonfinite: tuple[int, int] = (0, 0)
    peak: float = 0.0
    bins: Sequence[float] = ()
    frame: tuple[int, int] = (0, 0)
    rows: str = ""
    local: Distance = UNKNOWN
    birth: Birth | None = None
    verdict: SiteVerdict = "pass"
    note: str = ""
    called: str = ""
    same: str = ""

    @property
    def introduced(self) -> bool:
        """Whether a divergence starts here, and is not propagated."""
        return self.birth in ("input", "module")

    @property
    def remark(self) -> str:
        """A remark beside its numbers: its note, else what the candidate calls it."""
        return self.note or (f"{self.called} in the candidate" if self.called else "")


@dataclass(frozen=True, slots=True)
class Origin:
    """The first site, in execution order, where a divergence is born."""

    key: Key
    birth: Birth


EVIDENCE = {"swap": "swap test", "fault": "fault match", "measured": "measurement"}
"""Kind of evidence -> how it is called."""


@dataclass(frozen=True, slots=True)
class Witness:
    """One piece of evidence for a cause.

    Attributes:
        kind: of `EVIDENCE`. value: the number that shows it. detail: that number in words.
        confirm: a command that confirms the cause; empty where there is none.
    """

    kind: str
    value: float
    detail: str
    confirm: str = ""


HARMLESS = "harmless: "
"""How a cause begins that is none."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A setting or measured fact that explains the divergence, or a setting that was looked at and does no harm.

    Attributes:
        cause: what it is, one sentence. setting, reference, candidate: empty for a measured fact.
        fix: what to change, an imperative; empty where nobody knows.
        share: of the error's norm, 0 to 1, that goes with it or that it gives; NaN where that was not measured.
        harmless: whether it does no harm. at: the site that it explains; empty for where the two part first.
        alike: `setting=value` of other known faults whose errors are the same, so that it may be one of them.
    """

    cause: str
    setting: str
    reference: str
    candidate: str
    share: float = NAN
    evidence: tuple[Witness, ...] = ()
    alike: tuple[str, ...] = ()
    fix: str = ""
    harmless: bool = False
    at: str = ""

    @property
    def confirm(self) -> str:
        """A command that confirms it; empty where there is none."""
        return next((piece.confirm for piece in self.evidence if piece.confirm), "")


def measured(
    text: str,
    setting: str = "",
    reference: float | str = "",
    candidate: float | str = "",
    value: float = 1.0,
    *,
    detail: str = "",
    fix: str = "",
    at: str = "",
) -> Cause:
    """A cause that a number shows, without a share.

    Args:
        text: what it is. reference, candidate: what each side has; numbers as four digits. value: the number that
            shows it. detail: that in words; by default `text`. The others: see `Cause`.
    """
    ours, theirs = (x if isinstance(x, str) else f"{x:.4g}" for x in (reference, candidate))
    return Cause(text, setting, ours, theirs, NAN, (Witness("measured", value, detail or text),), fix=fix, at=at)


@dataclass(frozen=True, slots=True)
class Region:
    """Where in a frame the two sides differ most, relative to the whole frame's rms.

    Attributes:
        top, left, height, width: in pixels. rel_l2: rms of the difference there over the reference frame's rms.
    """

    top: int
    left: int
    height: int
    width: int
    rel_l2: float


@dataclass(frozen=True, slots=True)
class FrameError:
    """How far the candidate's frame is from the reference's.

    Attributes:
        distance: relative L2 of the decoded values, with the floor of this frame.
        psnr: in dB, inf for equal frames. ssim: mean structural similarity, 1 for equal frames. Both of the pictures,
            cut to 0..1 as they are shown; NaN where a value is not finite or, for ssim, where a frame is too small.
        region: where it is largest.
    """

    distance: Distance
    psnr: float
    ssim: float
    region: Region


@dataclass(frozen=True, slots=True)
class FrameDiff:
    """One decoded frame.

    Attributes:
        frame: from 0; videos of a batch one after the other.
        by_itself: both decoders fed the reference's latents. in_chain: each fed its own side's; None without a chain.
    """

    frame: int
    by_itself: FrameError
    in_chain: FrameError | None = None


class Reasoned:
    """What has a reason."""

    __slots__ = ()
    why: Reason

    @property
    def reason(self) -> str:
        """`why` as one sentence for a tired person."""
        return sentence(self.why)


@dataclass(frozen=True, slots=True)
class StageDiff(Reasoned):
    """One stage outside the loop.

    Attributes:
        stage: `text` or `vae`. output: the worst of its outputs by name.
        by_itself: fed the same inputs on both sides. in_chain: each side's own; NaN where there is no chain.
        verdict: of the stage. why: the reason for it.
    """

    stage: str
    output: str
    by_itself: Distance
    in_chain: Distance
    verdict: Verdict
    why: Reason


@dataclass(frozen=True, slots=True)
class Checked(Reasoned):
    """One check of a run.

    Attributes:
        name: `logic` (float32, every dtype setting neutralised) or `precision` (everything as given).
        verdict, why: of this check. steps: against its truth: the reference itself in the logic check, the
            reference in float32 in the precision check. origin: where the paths part.
    """

    name: CheckName
    verdict: Verdict
    why: Reason
    steps: tuple[StepDiff, ...] = ()
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Result(Reasoned):
    """A whole comparison.

    Attributes:
        verdict, failed, why: the answer in one word, what failed, and why.
        model: as named. notes: further sentences (sites never fired, a differing setting that did no harm, ...).
        differing_settings, preflight, steps, sites, origin, causes: as in the JSON document; lists in execution order.
        checks: logic and precision, those that were run; `steps`, `sites` and `origin` are of the last of them.
        stages: those outside the loop that were run. frames: decoded by the VAE stage.
        closer: sites inside the block where the divergence is born, observed in a closer look; empty without one.
        shown: modules of the reference that agree within floors in which no other weights hide.
    """

    verdict: Verdict
    failed: Failed | None
    why: Reason
    model: str = ""
    differing_settings: tuple[SettingDifference, ...] = ()
    preflight: tuple[Check, ...] = ()
    steps: tuple[StepDiff, ...] = ()
    sites: Sequence[SiteDiff] = ()
    origin: Origin | None = None
    causes: tuple[Cause, ...] = ()
    checks: tuple[Checked, ...] = ()
    closer: tuple[SiteDiff, ...] = ()
    stages: tuple[StageDiff, ...] = ()
    frames: tuple[FrameDiff, ...] = ()
    notes: tuple[Note, ...] = ()
    shown: tuple[str, ...] = ()

    def noted(self, *texts: str) -> Result:
        """With further sentences behind its notes.

        Args:
            texts: a sentence each, without a full stop.
        """
        return replace(self, notes=(*self.notes, *map(Note, texts)))

    def told(self, found: Iterable[Cause | Note]) -> Result:
        """With causes before its own, and notes behind them."""
        found = tuple(found)
        causes, notes = (t for t in found if isinstance(t, Cause)), (t for t in found if isinstance(t, Note))
        return replace(self, causes=(*causes, *self.causes), notes=(*self.notes, *notes))

    def unjudged(self, problem: Problem = "other", detail: str = "") -> Result:
        """The same without a verdict.

        Args:
            problem, detail: why; see `Reason`.
        """
        return replace(self, verdict="inconclusive", why=Reason(kind="inconclusive", problem=problem, detail=detail))

    def resting_on(self, idle: Sequence[str]) -> Result:
        """The result, inconclusive where it passed although what a port installed did not run.

        Args:
            idle: why, a sentence each.
        """
        if not idle or self.verdict != "pass":
            return self.noted(*idle)
        return self.unjudged(detail=f"a pass would say nothing about the port: {'; '.join(idle)}")

    @property
    def has_causes_to_find(self) -> bool:
        """Whether it differs where `parity explain` looks for causes: at a first divergence, or in a stage that ran.
        Other weights are known before either."""
        places = self.origin is not None or any(s.verdict == "fail" for s in self.stages)
        return self.verdict == "fail" and self.failed != "preflight" and places

    @property
    def exit_code(self) -> int:
        """0 same, 1 diverged, 125 inconclusive."""
        return {"pass": 0, "fail": 1, "inconclusive": 125}[self.verdict]


def result_text(result: Result) -> str:
    """A result as text that `read_result` reads: its fields as they are, NaN and infinities by these names; row bins of
    sites that do not pass alone, as in the JSON document."""
    sites = [d if d.verdict != "pass" else replace(d, bins=()) for d in result.sites]
    return json.dumps(msgspec.to_builtins(replace(result, sites=sites), enc_hook=_plain))


def _plain(x: Any) -> Any:
    """A number or numbers of numpy's."""
    return x.tolist()


def read_result(text: str | bytes) -> Result:
    """The result of `result_text`.

    Raises:
        ValueError: the text is another's.
    """
    try:
        return msgspec.convert(json.loads(text), Result)
    except msgspec.ValidationError as error:
        raise MalformedError(str(error)) from None
