"""Why a comparison came to its verdict: as data, and the one place where that becomes a sentence.

Problem. A sentence that was composed early can only be cut apart later, where more is known: a closer look that
places the divergence closer, a second check, a second stage.

How. `Reason` holds what is known, `dataclasses.replace` refines it, and `sentence` words it. Nothing else in parity
words a reason, and nothing reads one back. `Note` is a further sentence, with the setting that it is about.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from parity.records import FRAMES, LOOP, LOOP_STAGE, SCHEDULE, Key

NAN = float("nan")

Birth = Literal["input", "module", "propagated"]
Kind = Literal["agrees", "preflight", "first_divergence", "output", "inconclusive"]
Fed = Literal["own", "candidate"]
Problem = Literal[
    "other",
    "no_tensor",
    "not_finite",
    "not_comparable",
    "no_floors",
    "some_floors",
    "no_module",
    "no_site",
    "wide_floor",
    "no_prediction",
    "coarser",
    "chip",
]

WIDE = 0.05
"""Between what a floor in float32 may be at most, and one in a 16-bit dtype (`parity.compare.conclude`)."""

FLOORS = "`parity record DIR`, or in your own loop `for _ in parity.record(DIR, ...)`"
"""What records a reference with floors."""


@dataclass(frozen=True, slots=True)
class Distance:
    """How far the candidate is from the reference at one place.

    Attributes:
        rel_l2: ||candidate - reference|| / ||reference||; NaN where either holds NaN or Inf.
        floor: the same for the difference that rounding alone explains; NaN where it was not measured.
        ratio: rel_l2 / floor; inf where the floor is 0 and the difference is not.
    """

    rel_l2: float
    floor: float
    ratio: float


UNKNOWN = Distance(NAN, NAN, NAN)
"""A distance that was not measured."""


@dataclass(frozen=True, slots=True)
class Note:
    """A further sentence about a comparison.

    Attributes:
        text: the sentence. setting: the name of the differing setting that it is about; empty for none.
    """

    text: str
    setting: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Output:
    """The worst of an output over the steps that were compared.

    Attributes:
        port: `noise_pred`, `latents`, `frames`, an encoder's output. distance: how far.
    """

    port: str
    distance: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a comparison came to its verdict.

    Attributes:
        kind: `agrees`; `preflight`: a check failed before any forward; `first_divergence`: a site decides; `output`:
            only what a stage ends in is beyond its floor; `inconclusive`: no verdict could be given.
        first: the first site seen to differ. birth: how the divergence starts there.
        after: the last sites seen to agree before it; with `first` the interval in which the divergence starts.
        not_compared: modules between them, and inputs of `first`, that do not line up on both sides. unlike: how the
            first of them does not.
        called: the candidate's names of `first`, or of inputs of its call that agree, where they are others.
        distance: at `first`; of what agrees on recorded inputs, the worst.
        element, part: ratio to its floor of the largest element, or of the worst row bin, where that is beyond its
            limit and the norm is not; NaN elsewhere.
        note: what stands in place of a number, such as `None against a tensor`.
        fed: whose values it was made of: each side's own, or on both sides the candidate's; then `distance` is local.
        output: the worst output; None where it is not shown. outputs_match: whether noise_pred and latents match
            though a site does not.
        sites, steps: how many were decided.
        check, detail: the check that failed, and its line; for `inconclusive`, what the problem is about.
        problem: why there is no verdict.
        stage, encoder: outside the loop: `text` or `vae`, and the encoder.
        precision: whether this is the precision check of a run whose logic check agreed.
        together: the reasons of several stages or encoders that all agree.
    """

    kind: Kind
    first: Key | None = None
    birth: Birth = "module"
    after: tuple[Key, ...] = ()
    not_compared: tuple[str, ...] = ()
    unlike: str = ""
    called: tuple[str, ...] = ()
    distance: Distance = UNKNOWN
    element: float = NAN
    part: float = NAN
    note: str = ""
    fed: Fed = "own"
    output: Output | None = None
    outputs_match: bool = False
    sites: int = 0
    steps: int = 0
    check: str = ""
    detail: str = ""
    problem: Problem = "other"
    stage: str = ""
    encoder: str = ""
    precision: bool = False
    together: tuple[Reason, ...] = ()


def sentence(reason: Reason) -> str:
    """One sentence for a tired person; empty where nothing was compared yet."""
    before = "logic agrees; precision: " if reason.precision else ""
    if reason.together:
        return before + "; ".join(sentence(r) for r in reason.together)
    words = {
        "agrees": _agrees,
        "preflight": _preflight,
        "first_divergence": _first_divergence,
        "output": _output,
        "inconclusive": _inconclusive,
    }
    return before + words[reason.kind](reason)


def _agrees(reason: Reason) -> str:
    if not reason.sites:
        return reason.detail
    where = " ".join(filter(None, (reason.stage, reason.encoder)))
    of = f" of {reason.steps} step{'s' * (reason.steps > 1)}" if reason.steps and not reason.stage else ""
    return f"{where}{': ' * bool(where)}{reason.sites} sites{of} agree within their floors{worst_of(reason)}"


def _preflight(reason: Reason) -> str:
    return ("" if reason.stage else "preflight: ") + f"{reason.check}: {reason.detail}"


def _first_divergence(reason: Reason) -> str:
    inputs = "inputs match" if reason.fed == "own" else "on the candidate's own values before it"
    unpaired = f" but for {_not_compared(reason)}" if reason.not_compared else ""
    called = f" ({', '.join(reason.called)} in the candidate)" if reason.called else ""
    what = "this value" if reason.first is not None and reason.first.module == LOOP else "this input"
    how = {
        "module": f"{inputs}{called}{unpaired}, output" if inputs_compared(reason) else _interval(reason),
        "input": f"everything before it{unpaired} matches, {what}{called}",
        "propagated": f"grown from smaller differences before it, this value{called}",
    }[reason.birth]
    if reason.first is not None and reason.first.module == SCHEDULE:
        how = "as it was set, it"
    end = "; noise_pred and latents still match" if reason.outputs_match else worst_of(reason)
    at = f"first divergence: {place(reason.first)}" if reason.first is not None else "first divergence"
    return f"{at}: {how} {_differs(reason)}{end}"


def _not_compared(reason: Reason) -> str:
    names, more = reason.not_compared[:3], len(reason.not_compared) - 3
    rest = f" and {more} more" if more > 0 else ""
    return f"{', '.join(names)}{rest} (not compared{': ' * bool(reason.unlike)}{reason.unlike})"


def inputs_compared(reason: Reason) -> bool:
    """Whether the inputs of the call that differs first were seen to agree; else all that is known is an interval."""
    first = reason.first
    if first is None or reason.fed != "own" or first.module in (LOOP, SCHEDULE):
        return True
    call = (first.branch, first.module, first.call)
    return any(k.is_input and (k.branch, k.module, k.call) == call for k in reason.after)


def _interval(reason: Reason) -> str:
    if not reason.after:
        return "nothing before it was compared, output"
    return f"its own inputs were not compared, {place(reason.after[-1])} before it matches, output"


def place(key: Key) -> str:
    """`blocks.0.attn output, image tokens (step 0, cond)`."""
    port, _, part = key.port.partition("@")
    what, _, rest = port.partition(".")
    if key.module == LOOP:
        named = f"{what} {rest} the step" if rest in ("before", "after") else port
    elif key.module == SCHEDULE:
        named = f"the schedule of {port}"
    elif key.site == FRAMES:
        named = "the frames"  # which the decoder's output is made into
    else:
        rest = "" if rest == "input" else f" {rest}" if rest else ""
        named = f"{key.module or 'model'} {'input' if what == 'in' else 'output'}{rest}"
    where = [
        *([key.stage] if key.stage not in ("", LOOP_STAGE) else []),
        *([f"step {key.step}"] if key.step >= 0 else []),
        *([key.branch] if key.branch else []),
        *([f"call {key.call}"] if key.call else []),
    ]
    named += f", {part} tokens" if part else ""
    return f"{named} ({', '.join(where)})" if where else named


def _differs(reason: Reason) -> str:
    """How far, and what of it is beyond its floor."""
    if reason.note:
        return f"differs ({reason.note})"
    far = reason.distance
    if math.isnan(far.rel_l2):
        return "differs: NaN or infinite on one side"
    by = f"differs by {far.rel_l2:.2e} relative L2"
    if math.isnan(far.ratio):
        return f"{by}, and no rounding floor was measured"
    if math.isinf(far.ratio):
        return f"{by}, where rounding explains none"
    for most, what in ((reason.element, "its largest element"), (reason.part, "one part of its rows")):
        if not math.isnan(most):
            return f"{by}, {far.ratio:.1f}x the rounding floor; {what} {most:,.0f}x"
    return f"{by}, {far.ratio:,.0f}x the rounding floor"


def _output(reason: Reason) -> str:
    if reason.output is None:
        return reason.detail or f"{reason.stage}: beyond its floors at {reason.sites} sites"
    far = f"{reason.output.distance.rel_l2:.2e} relative L2, {reason.output.distance.ratio:,.0f}x the rounding floor"
    return f"the {reason.output.port} of the whole chain differ by {far}, though each decoder alone matches"


def worst_of(reason: Reason) -> str:
    """The worst output as the end of a sentence; empty where there is none."""
    if reason.output is None:
        return ""
    far = reason.output.distance
    most = "" if reason.stage else " at most"
    floor = "no floor" if math.isnan(far.floor) else f"floor {far.floor:.2e}"
    return f"; {reason.output.port} relative L2 {far.rel_l2:.2e}{most}, {floor}"


def _inconclusive(reason: Reason) -> str:
    differs = f" ({reason.note})" if reason.note else f" (relative L2 {reason.distance.rel_l2:.2e})"
    return {
        "other": reason.detail,
        "no_tensor": f"the two {reason.detail} have no tensor in common: nothing was compared",
        "not_finite": f"the reference itself is not finite at {'' if reason.first is None else place(reason.first)}",
        "not_comparable": f"not comparable: {reason.detail}",
        "no_floors": f"the reference golden holds no floors, and the two differ, first at {reason.first}{differs}: "
        f"whether that is rounding is unknown; record the reference with floors: {FLOORS}",
        "some_floors": f"{reason.sites} sites differ whose floors the reference golden does not hold, first "
        f"{reason.first}; record the reference with the floors of all its sites: {FLOORS}",
        "wide_floor": _wide_floor(reason),
        "coarser": f"the candidate computes in {reason.detail}, and the reference golden's floors are those of a wider "
        f"dtype: record the reference in {reason.detail} too, or the candidate in the reference's dtype",
        "chip": f"exp, tanh and the like are a TPU {reason.detail}'s, which the reference golden's floors do not allow "
        f"for: record the reference with --floors {reason.detail}",
        "no_prediction": f"the candidate's recording lacks noise_pred and latents at {reason.steps} "
        f"step{'s' * (reason.steps > 1)}, so its guidance and scheduler were not compared: give parity.record the "
        "scheduler that its loop calls (scheduler=), or record the reference without its own",
        "no_module": f"no module lines up with the reference's: {reason.detail}"
        if reason.detail
        else "the port and the reference name no module alike: map the port's names with Port(rename=...)",
        "no_site": f"the port and the reference have no site in common: {reason.detail}",
    }[reason.problem]


def _wide_floor(reason: Reason) -> str:
    begins = f"; it begins at {place(reason.first)}" if reason.first is not None else ""
    # A float32 floor is never so wide but by its inputs; a 16-bit one is, where the model multiplies what was rounded.
    coarse = reason.problem == "wide_floor" and float(reason.detail) > WIDE
    output = "noise_pred" if reason.output is None else reason.output.port
    scale = "are the inputs of the scale that the model takes, and does the reference compute the same each time?"
    advice = "record both sides in float32 too" if coarse else scale
    return (
        f"rounding alone moves {output} by {reason.distance.floor:.1e} of its size, more than {reason.detail}: no "
        f"floor to judge by{begins}: {advice}"
    )
