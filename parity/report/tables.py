"""The tables of a comparison: steps, blocks, stages, frames, failed sites.

How. A table has the rows at the first divergence and counts the others (`+8 pass, +5 fail: -v`); with details it has
all. Only selected here, never computed.

Cost. One pass over the sites of a step for a table of blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from parity.compare.result import Distance, FrameDiff, FrameError, Origin, SiteDiff, StageDiff, StepDiff
from parity.compare.sites import picked
from parity.records import LOOP, Key
from parity.report.document import Cells, Table, both, distance_cells, small, times

MOST_DETAILED = 1_000
"""Rows with details; `--format json` has all."""

MOST_SITES = 4
"""Failed sites that are listed; with details all."""

MOST_BLOCKS = 6
"""Blocks that are all listed; of more, those at the first divergence."""

LEGEND = "floor: what rounding alone explains; ratio: difference to floor, fails above 3x"
"""What the columns mean; the limit is `parity.floors.L2_LIMIT`."""

BLOCKS_LEGEND = "in, out: the worst input and output of a block, in multiples of its floor"
STAGES_LEGEND = "by itself: on the reference's input; in the chain: on its own; ratio: to floor"
FRAMES_LEGEND = "PSNR in dB; chain: of each side's own latents; worst at: top,left height x width"
FAILED_LEGEND = "module: inputs match, output differs; input: it differs, its producer matches"

TRUNKS = ("decoder", "text_encoder", "text_encoder_2")
"""Children of the stages' modules that hold their blocks."""

_GRAVE = ("fail", "inconclusive", "harmless")


def steps_table(steps: Sequence[StepDiff], first: int | None = None, details: bool = False) -> Table:
    """One row for each value of each step: the guided noise prediction, each branch's, the latents after the step.

    Args:
        first: the step of the first divergence, which is listed beside the worst and the last.
    """
    columns = ("step", "timestep", "sigma", "dt", "value", "rel L2", "floor", "ratio", "bits")
    listed = {step.step for step in steps}
    if len(steps) > 3 and not details:
        worst = max(steps, key=lambda step: -1 if math.isnan(step.noise_pred.ratio) else step.noise_pred.ratio)
        listed = {steps[-1].step, worst.step, first if first in listed else steps[0].step}
    return Table(
        "Steps (relative L2 of candidate against reference)",
        columns,
        tuple(row for step in steps if step.step in listed for row in _step_rows(step)),
        repeats=4,
        below=(f"+{len(steps) - len(listed)} steps: -v" if len(listed) < len(steps) else "", LEGEND),
    )


def _step_rows(step: StepDiff) -> Iterator[Cells]:
    loop = tuple(both(*pair) for pair in (step.timestep, step.sigma, step.dt))
    for value, distance in (("noise_pred", step.noise_pred), *step.branches.items(), ("latents", step.latents)):
        agree = f"{step.bits:.1f}/{step.bits_of}" if value == "noise_pred" and step.bits_of else "-"
        yield (str(step.step), *loop, value, *distance_cells(distance), agree)


def blocks_table(sites: Iterable[SiteDiff], where: str, origin: Origin | None = None, details: bool = False) -> Table:
    """One row a block of one step, `where`: the worst of its outputs and of its inputs on each branch.

    The loop's own values are in the step table; padded rows never decide and are left out, and so is what does not line
    up on both sides where anything else of the block does. Without details: the block of the origin and its
    neighbours, or those nearest to their floors where nothing fails.
    """
    shown = [s for s in sites if s.key.module != LOOP and s.verdict != "ignored"]
    branches = list(dict.fromkeys(site.key.branch for site in shown))
    by_block: dict[str, list[SiteDiff]] = {}
    for site in shown:
        by_block.setdefault(block_of(site.key.module), []).append(site)
    by_block = {block: [s for s in held if s.verdict != "not compared"] or held for block, held in by_block.items()}
    verdicts = {block: _verdict(held) for block, held in by_block.items()}
    stages = {site.key.stage for site in shown}
    first = block_of(origin.key.module) if origin is not None and origin.key.stage in stages else ""
    listed = list(by_block) if details else _first_blocks(by_block, verdicts, first)
    others = Counter(verdict for block, verdict in verdicts.items() if block not in listed)
    rest = ", ".join(
        f"+{others[verdict]} {verdict}" for verdict in ("pass", *_GRAVE, "not compared") if others[verdict]
    )
    ports = [(branch, is_input) for branch in branches for is_input in (False, True)]
    return Table(
        f"Blocks of {where} (worst ratio to the floor)",
        ("block", *(f"{branch} {'in' if is_input else 'out'}".strip() for branch, is_input in ports), "verdict"),
        tuple((block, *(_worst(by_block[block], *port) for port in ports), verdicts[block]) for block in listed),
        below=(f"{rest}: -v" if rest else "", BLOCKS_LEGEND),
    )


def _first_blocks(by_block: Mapping[str, list[SiteDiff]], verdicts: Mapping[str, str], origin: str) -> list[str]:
    """The blocks at the first divergence; all where they are few."""
    names = list(by_block)
    if len(names) <= MOST_BLOCKS:
        return names
    if origin in by_block:
        at = names.index(origin)
        return names[max(0, at - 1) : at + 2]
    grave = [name for name in names if verdicts[name] in _GRAVE]
    if grave:
        return grave[:3]
    ratios = {
        name: max((r for s in held if not math.isnan(r := _shown(s).ratio)), default=-1.0)
        for name, held in by_block.items()
    }
    return sorted(sorted(names, key=lambda name: -ratios[name])[:3], key=names.index)


def stages_table(stages: Sequence[StageDiff]) -> Table:
    """One row a stage outside the loop: the worst of its outputs, by itself and in the chain."""
    columns = ("stage", "output", "by itself", "ratio", "in the chain", "ratio", "verdict")
    rows = tuple((s.stage, s.output, *_far(s.by_itself), *_far(s.in_chain), s.verdict) for s in stages)
    return Table("Stages (relative L2 of the outputs)", columns, rows, below=(STAGES_LEGEND,))


def _far(distance: Distance) -> Cells:
    nothing = math.isnan(distance.rel_l2) and math.isnan(distance.floor)
    return ("-", "-") if nothing else (small(distance.rel_l2), times(distance.ratio))


def frames_table(frames: Sequence[FrameDiff], details: bool = False) -> Table:
    """One row a frame, or the first, the worst and the last: the decoders by themselves, and the whole chain."""
    columns = ("frame", "rel L2", "ratio", "PSNR", "SSIM", "chain rel L2", "chain PSNR", "chain SSIM", "worst at")
    worst = sorted(frames, key=lambda f: -_shown_error(f).distance.rel_l2)[: MOST_DETAILED if details else 1]
    numbers = {f.frame for f in (*frames[:1], *worst, *frames[-1:])}
    shown = [f for f in frames if f.frame in numbers]
    rest = len(frames) - len(shown)
    return Table(
        "Frames",
        columns,
        tuple(map(_frame_cells, shown)),
        below=(f"+{rest} frames: {'--format json' if details else '-v'}" if rest else "", FRAMES_LEGEND),
    )


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
    return next((verdict for verdict in (*_GRAVE, "pass") if verdict in verdicts), "not compared")


def failures(sites: Sequence[SiteDiff], propagated: int, details: bool = False) -> Table:
    """The first sites where something was introduced, in execution order, and how many more failed.

    What is only propagated from them says nothing new; it is listed where nothing was introduced, or with details.

    Args:
        propagated: how many sites are.
    """
    failed = [*picked(sites, "fail")]
    own = [d for d in failed if d.birth != "propagated"]
    alone = details or not own
    listed = failed if alone else own
    rows = tuple(map(_failure_cells, listed[: MOST_DETAILED if details else MOST_SITES]))
    rest = [f"+{len(listed) - len(rows)} more"] * (len(listed) > len(rows))
    rest += [f"+{propagated} propagated"] * (not alone and propagated > 0)
    return Table(
        "Sites that failed",
        ("site", "where", "rel L2", "ratio", "remarks"),
        rows,
        folds=("site", "remarks"),
        below=(f"{', '.join(rest)}: {'--format json' if details else '-v'}" if rest else "", FAILED_LEGEND),
        noun="failed",
    )


def _failure_cells(site: SiteDiff) -> Cells:
    far = (small(_shown(site).rel_l2), times(_shown(site).ratio))
    name = site.key.site + (f" call {site.key.call}" if site.key.call else "")
    return (name, place(site.key), *far, ", ".join(remarks(site)) or "-")


def remarks(site: SiteDiff) -> Iterator[str]:
    """What explains a failure at a glance: birth, local error, note, and what the two sides do not share."""
    if site.birth is not None:
        yield site.birth
    if not math.isnan(site.local.ratio):
        yield f"local {small(site.local.rel_l2)} ({times(site.local.ratio)})"
    if site.remark:
        yield site.remark
    if site.shapes[0] != site.shapes[1]:
        yield "shape " + " -> ".join("x".join(map(str, shape)) or "()" for shape in site.shapes)
    if site.dtypes[0] != site.dtypes[1]:
        yield f"dtype {site.dtypes[0]} -> {site.dtypes[1]}"
    if any(site.nonfinite):
        yield f"NaN or Inf: {site.nonfinite[0]} -> {site.nonfinite[1]}"


def place(key: Key) -> str:
    """`step 0 cond`; the stage only where it is not the one that nearly every site is in."""
    branch = f" {key.branch}" if key.branch else ""
    if key.step < 0 and key.stage != "transformer":
        return f"{key.stage}{branch}"  # outside the loop
    stage = "" if key.stage == "transformer" else f"{key.stage} "
    return f"{stage}step {key.step}{branch}"
