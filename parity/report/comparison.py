"""A comparison as a document: what a person reads of it, in ten seconds.

In this order: the card (`parity.report.card`); preflight; one row a step; one row a block for the step of the first
divergence; the sites that failed. Only selected here, never computed.

Cost. One pass over the sites.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from parity.compare.many.sites import FAILED, INTRODUCED, Which, among, count, steps_of
from parity.compare.result import (
    Check,
    Distance,
    FrameDiff,
    FrameError,
    Result,
    SiteDiff,
    StageDiff,
    StepDiff,
)
from parity.golden.records import LOOP
from parity.report.card import card, context, place, site_name
from parity.report.document import Cells, Facts, Json, Section, Table
from parity.report.result_json import written

MOST_SITES = 12
"""Failed sites that are listed; `--json` has all."""

LEGEND = "floor: what rounding alone explains; ratio: difference to floor, fails above 3x"
"""What the columns mean; the limit is `parity.compare.judge.L2_LIMIT`."""

MOST_FRAMES = 9
"""Frames that are listed; `--json` has all."""

_INTRODUCED = frozenset({*INTRODUCED, None})
"""Births, or none, of what is not only carried over."""

TRUNKS = ("decoder", "text_encoder", "text_encoder_2")
"""Children of the stages' modules that hold their blocks."""

_SIGNS = {"pass": "✅", "fail": "❌", "unjudged": "⚠️"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison as a document.

    Attributes:
        result: what was found. explained: whether causes were looked for, so that none is an answer.
        following: commands to go on with.
    """

    result: Result
    explained: bool = False
    following: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        failed = f" ({self.result.failed})" if self.result.failed else ""
        return f"## {_SIGNS[self.result.verdict]} parity: {self.result.verdict}{failed}"

    def json(self) -> Json:
        return written(self.result)

    def conclusion(self) -> tuple[Section, ...]:
        return _filled(card(self.result, self.following), context(self.result))

    def sections(self) -> tuple[Section, ...]:
        result = self.result
        step = shown_step(result)
        outside = {s.stage for s in result.stages}
        loop = among(result.sites, step=step, which=lambda s: s.key.stage not in outside)
        # A second look names modules where the first names blocks.
        failing = failures(result.closer or result.sites)
        return _filled(
            preflight(result),
            steps_table(result.steps),
            blocks_table(loop, step),
            stages_table(result.stages),
            *stage_blocks(result),
            frames_table(result.frames),
            failing,
        )


def _filled(*sections: Section) -> tuple[Section, ...]:
    return tuple(section for section in sections if section.rows)


def preflight(result: Result) -> Facts:
    """The checks that did not pass, then one line for those that did."""
    rest = [check for check in result.preflight if check.verdict != "pass"]
    rows = [("preflight", _check(check)) for check in rest]
    passed = len(result.preflight) - len(rest)
    if passed:
        checks = "check passes" if passed == 1 else "checks pass"
        rows.append(("preflight", f"{passed} {'other ' if rest else ''}{checks}"))
    return Facts(tuple(rows))


def _check(check: Check) -> str:
    return f"{check.verdict}: {check.check}" + (f": {check.detail}" if check.detail else "")


def steps_table(steps: Sequence[StepDiff]) -> Table:
    """One row for each value of each step: the guided noise prediction, each branch's, the latents after the step."""
    columns = ("step", "timestep", "sigma", "dt", "value", "rel L2", "floor", "ratio", "bits")
    rows = tuple(row for step in steps for row in _step_rows(step))
    return Table("Steps (relative L2 of candidate against reference)", "step", columns, rows, repeats=4, foot=LEGEND)


def _step_rows(step: StepDiff) -> Iterator[Cells]:
    loop = tuple(both(*pair) for pair in (step.timestep, step.sigma, step.dt))
    for value, distance in (("noise_pred", step.noise_pred), *step.branches.items(), ("latents", step.latents)):
        agree = f"{step.bits:.1f}/{step.bits_of}" if value == "noise_pred" and step.bits_of else "-"
        yield (str(step.step), *loop, value, *distance_cells(distance), agree)


def shown_step(result: Result) -> int | None:
    """The step whose blocks are shown: where the divergence starts, else the first with a failure, else the first."""
    if result.origin is not None and result.origin.key.stage not in {s.stage for s in result.stages}:
        return result.origin.key.step
    failed, every = set(steps_of(result.sites, FAILED)), set(steps_of(result.sites))
    return min(failed or {step for step in every if step >= 0} or every, default=None)


def blocks_table(sites: Iterable[SiteDiff], step: int | None) -> Table:
    """One row a block of one step: the worst of its outputs and of its inputs on each branch.

    The loop's own values are in the step table; padded rows never decide and are left out.
    """
    shown = [s for s in sites if s.key.step == step and s.key.module != LOOP and s.verdict != "apart"]
    branches = list(dict.fromkeys(site.key.branch for site in shown))
    by_block: dict[str, list[SiteDiff]] = {}
    for site in shown:
        by_block.setdefault(block_of(site.key.module), []).append(site)
    ports = [(branch, is_input) for branch in branches for is_input in (False, True)]
    rows = tuple(
        (block, *(_worst(held, branch, is_input) for branch, is_input in ports), _verdict(held))
        for block, held in by_block.items()
    )
    columns = ("block", *(f"{branch} {'in' if is_input else 'out'}".strip() for branch, is_input in ports), "verdict")
    return Table(f"Blocks of step {step} (worst ratio to the floor)", "block", columns, rows)


def stages_table(stages: Sequence[StageDiff]) -> Table:
    """One row a stage outside the loop: the worst of its outputs, by itself and in the chain."""
    columns = ("stage", "output", "by itself", "ratio", "in the chain", "ratio", "verdict")
    rows = tuple((s.stage, s.output, *_far(s.by_itself), *_far(s.in_chain), s.verdict) for s in stages)
    return Table("Stages (relative L2 of the outputs)", "stage", columns, rows)


def stage_blocks(result: Result) -> Iterator[Table]:
    """The blocks of each stage outside the loop that does not pass."""
    for stage in (s.stage for s in result.stages if s.verdict != "pass"):
        table = blocks_table(among(result.sites, step=-1, which=_of(stage)), -1)
        yield replace(table, title=f"Blocks of the {stage} stage (worst ratio to the floor)")


def _of(stage: str) -> Which:
    return lambda s: s.key.stage == stage


def _far(distance: Distance) -> Cells:
    nothing = math.isnan(distance.rel_l2) and math.isnan(distance.floor)
    return ("-", "-") if nothing else (small(distance.rel_l2), times(distance.ratio))


def frames_table(frames: Sequence[FrameDiff]) -> Table:
    """One row a frame: the decoders by themselves, and the pictures of the whole chain. The first, worst and last."""
    columns = ("frame", "rel L2", "ratio", "PSNR", "SSIM", "chain rel L2", "chain PSNR", "chain SSIM", "worst at")
    shown = frames
    if len(frames) > MOST_FRAMES:
        worst = sorted(frames, key=lambda f: -_shown_error(f).distance.rel_l2)[: MOST_FRAMES - 2]
        shown = sorted({f.frame: f for f in (frames[0], *worst, frames[-1])}.values(), key=lambda f: f.frame)
    some = f" (the worst, the first and the last of {len(frames)})" if len(shown) < len(frames) else ""
    return Table(f"Frames{some}", "frame", columns, tuple(_frame_cells(frame) for frame in shown))


def _shown_error(frame: FrameDiff) -> FrameError:
    return frame.in_chain or frame.by_itself


def _frame_cells(frame: FrameDiff) -> Cells:
    own, chain, region = frame.by_itself, frame.in_chain, _shown_error(frame).region
    far = ("-", "-", "-") if chain is None else (small(chain.distance.rel_l2), f"{chain.psnr:.1f}", f"{chain.ssim:.4f}")
    where = f"{region.top},{region.left} {region.height}x{region.width}"
    return (str(frame.frame), *_far(own.distance), f"{own.psnr:.1f}", f"{own.ssim:.4f}", *far, where)


def block_of(module: str) -> str:
    """The row a module belongs to: an item of one of the model's lists, else one of the model's children.

    A stage's module has its lists one level down: `decoder.up_blocks.0`.
    """
    parts = module.split(".")
    if len(parts) > 1 and parts[0] in TRUNKS:
        return ".".join(parts[: 3 if len(parts) > 2 and parts[2].isdecimal() else 2])
    return ".".join(parts[: 2 if len(parts) > 1 and parts[1].isdecimal() else 1]) or "(model)"


def _worst(sites: Iterable[SiteDiff], branch: str, is_input: bool) -> str:
    """The largest ratio; without floors the largest difference; `nan` where a site's difference is none."""
    held = [_shown(s) for s in sites if s.key.branch == branch and s.key.is_input == is_input]
    if not held:
        return "-"
    if any(math.isnan(distance.rel_l2) for distance in held):
        return "nan"
    ratios = [distance.ratio for distance in held if not math.isnan(distance.ratio)]
    return times(max(ratios)) if ratios else small(max(distance.rel_l2 for distance in held))


def _shown(site: SiteDiff) -> Distance:
    """The propagated difference; the local one where a module was only run on recorded inputs."""
    alone = math.isnan(site.distance.rel_l2) and not math.isnan(site.local.rel_l2)
    return site.local if alone else site.distance


def _verdict(sites: Sequence[SiteDiff]) -> str:
    verdicts = {site.verdict for site in sites}
    return next((verdict for verdict in ("fail", "unjudged", "harmless") if verdict in verdicts), "pass")


def failures(sites: Sequence[SiteDiff]) -> Table:
    """The first sites where something was introduced, in execution order, and how many more failed.

    What is only carried over from them says nothing new; it is listed where nothing was introduced.
    """
    failed = count(sites, FAILED)
    carried = count(sites, FAILED, frozenset({"amplified"}))
    births = _INTRODUCED if carried < failed else None
    listed = tuple(itertools.islice(among(sites, verdicts=FAILED, births=births), MOST_SITES))
    columns = ("site", "where", "rel L2", "ratio", "remarks")
    carried = carried if carried < failed else 0
    more = failed - len(listed) - carried
    rest = [f"{more} more"] * (more > 0) + [f"{carried} carried over (grown, not introduced)"] * (carried > 0)
    foot = f"{' and '.join(rest)}: --json has all" if rest else ""
    rows = tuple(map(_failure_cells, listed))
    return Table("Sites that failed", "failed", columns, rows, folds=("site", "remarks"), foot=foot)


def _failure_cells(site: SiteDiff) -> Cells:
    far = (small(_shown(site).rel_l2), times(_shown(site).ratio))
    return (site_name(site.key), place(site.key), *far, ", ".join(remarks(site)) or "-")


def remarks(site: SiteDiff) -> Iterator[str]:
    """What explains a failure at a glance: birth, local error, note, and what the two sides do not share."""
    if site.birth is not None:
        yield site.birth
    if not math.isnan(site.local.ratio):
        yield f"local {small(site.local.rel_l2)} ({times(site.local.ratio)})"
    if site.note:
        yield site.note
    if site.shapes[0] != site.shapes[1]:
        yield "shape " + " -> ".join("x".join(map(str, shape)) or "()" for shape in site.shapes)
    if site.dtypes[0] != site.dtypes[1]:
        yield f"dtype {site.dtypes[0]} -> {site.dtypes[1]}"
    if any(site.nonfinite):
        yield f"NaN or Inf: {site.nonfinite[0]} -> {site.nonfinite[1]}"


def small(value: float) -> str:
    """A difference: `2.80e-06`; 0 as such."""
    return "0" if value == 0 else f"{value:.2e}"


def times(ratio: float) -> str:
    """A ratio to the floor: `0.8x`, `1.2e+04x`, `inf`, `nan`."""
    if not math.isfinite(ratio):
        return str(ratio)
    return f"{ratio:.1f}x" if ratio < 1000 else f"{ratio:.1e}x"


def both(reference: float, candidate: float) -> str:
    """A number of each side, once where they agree: `999`, `999 -> 1000`; `-` for one that a schedule does not have."""
    texts = ["-" if math.isnan(value) else f"{value:.5g}" for value in (reference, candidate)]
    if reference == candidate or (math.isnan(reference) and math.isnan(candidate)):
        return texts[0]
    return " -> ".join(texts if texts[0] != texts[1] else [repr(reference), repr(candidate)])


def distance_cells(distance: Distance) -> Cells:
    """(relative L2, floor, ratio)."""
    return small(distance.rel_l2), small(distance.floor), times(distance.ratio)
