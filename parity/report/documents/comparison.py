"""The document of a comparison: of `parity run`, `diff`, `gate`, `explain`; of a kept run's files."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from parity.compare.reason import Birth
from parity.compare.result import Failed, SiteVerdict, Verdict
from parity.golden.strict import Number


class Place(TypedDict):
    """One observation: stage, denoising step (-1: outside the loop), guidance branch, `module:port`, call of the module
    in that step and branch."""

    stage: str
    step: int
    branch: str
    site: str
    call: int


class Origin(Place):
    """The first site, in execution order, where a divergence is introduced, and how: its `input` differs although what
    made it agreed; the `module` itself; or it is only `amplified`, that is carried over and grown."""

    birth: Birth


class Apart(TypedDict):
    """How far the candidate is from the reference.

    rel_l2: ||candidate - reference|| / ||reference||. floor: the same of the difference that rounding alone explains.
    ratio: rel_l2 / floor. "nan": not measured, or not finite.
    """

    rel_l2: Number
    floor: Number
    ratio: Number


class Site(Apart):
    """One site. `local_`: the module's own difference, fed the reference's input. shapes, dtypes, nonfinite (count of
    NaN and Inf): [reference, candidate]. bins: ratio to the floor of each row bin, of sites that do not pass."""

    stage: str
    step: int
    branch: str
    site: str
    call: int
    local_rel_l2: Number
    local_floor: Number
    local_ratio: Number
    cosine: Number
    max_abs: Number
    linf_ratio: Number
    shapes: list[list[int]]
    dtypes: list[str]
    nonfinite: list[int]
    birth: Birth | None
    verdict: SiteVerdict
    note: str
    bins: NotRequired[list[Number]]


class Schedule(TypedDict):
    """What the loop's schedule has for a step."""

    timestep: Number
    sigma: Number
    dt: Number


class Step(Schedule):
    """One denoising step: the reference's schedule, the candidate's under `candidate`, and how far the step's values
    are. bits: leading bits in which noise_pred agrees, of `bits_of` that its dtype has."""

    step: int
    candidate: Schedule
    latents_before: Apart
    noise_pred: Apart
    branches: dict[str, Apart]
    latents: Apart
    bits: Number
    bits_of: int


class Round(TypedDict):
    """One round: `structure` (float32, dtype settings neutralised) or `precision` (as given, against the float32
    truth)."""

    round: Literal["structure", "precision"]
    verdict: Verdict
    reason: str
    origin: Origin | None
    steps: list[Step]


class Setting(TypedDict):
    """A setting in which the two paths differ."""

    setting: str
    reference: str
    candidate: str


class Check(TypedDict):
    """One check of preflight; `explained`: a declared differing setting accounts for it."""

    check: str
    verdict: Literal["pass", "fail", "explained"]
    detail: str


class Witness(TypedDict):
    """Evidence for a cause: `counterfactual`, `signature` or `gauge`."""

    kind: str
    value: Number
    detail: str


class Cause(TypedDict):
    """What explains a share (0 to 1) of the divergence; `half`: half the width of its interval. Without a setting it
    is a measured fact. alike: `setting=value` of other known faults whose errors are the same."""

    cause: str
    setting: str
    reference: str
    candidate: str
    share: Number
    half: Number
    alike: list[str]
    witnesses: list[Witness]


class Stage(TypedDict):
    """A stage outside the loop: `by_itself` fed the same inputs on both sides, `in_chain` each side's own."""

    stage: str
    verdict: Verdict
    reason: str
    output: str
    by_itself: Apart
    in_chain: Apart


class Region(TypedDict):
    """Where a frame differs most, in pixels."""

    top: int
    left: int
    height: int
    width: int
    rel_l2: Number


class FrameDistance(Apart):
    """How far a decoded frame is. psnr: dB, "inf" for equal frames; ssim: 1 for equal frames."""

    psnr: Number
    ssim: Number
    region: Region


class Frame(FrameDistance):
    """A decoded frame, from 0: both decoders fed the reference's latents, and `in_chain` each its own side's."""

    frame: int
    in_chain: FrameDistance | None


class Comparison(TypedDict):
    """A comparison. Lists are in execution order, causes by share. steps, sites and origin are of the last round;
    closer: sites within the block where the divergence starts, from a second look."""

    format: Literal[1]
    verdict: Verdict
    failed: Failed | None
    reason: str
    model: str
    differing_settings: list[Setting]
    preflight: list[Check]
    steps: list[Step]
    sites: list[Site]
    origin: Origin | None
    causes: list[Cause]
    rounds: list[Round]
    stages: list[Stage]
    frames: list[Frame]
    closer: list[Site]
    notes: list[str]
