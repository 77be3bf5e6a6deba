"""What a judged run shows beside its numbers, each in one sentence: where in the rows, which dtypes, whose NaN.

Pure functions over judged sites. Each gives a sentence or nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from parity.compare.births import is_prediction
from parity.compare.reason import Note
from parity.compare.result import Origin, SiteDiff
from parity.compare.sites import picked
from parity.floors import LINF_LIMIT
from parity.records import LOOP
from parity.sketch import Geometry
from parity.transforms import ANOTHER

VIDEO = "decode:out"
"""Site of what a script's decoder gave, [batch, frames, ...]."""
_FRAMES = f"{LOOP}:frames"
"""Site of what parity's own decoders gave, which is described frame by frame."""
_FLOATS = ("float64", "float32", "bfloat16", "float16")
_MOST = 8


def findings(
    sites: Sequence[SiteDiff], origin: Origin, declared: Iterable[str] = (), grid: tuple[int, int, int] | None = None
) -> tuple[Note, ...]:
    """The findings of a judged run, those that say nothing left out.

    Args:
        declared: names of the settings that are declared to differ. grid: (frames, height, width) in tokens, as the
            model's image tokens lie frame by frame and row by row; None where it is not known.
    """
    first = [_branches(sites, origin), _perhaps_another(sites, origin), _rows(sites, origin, grid)]
    return tuple(Note(text) for text in (*first, _dtypes(sites, declared), _nonfinite(sites)) if text)


def _branches(sites: Sequence[SiteDiff], origin: Origin) -> str:
    """Which guidance branches are hit, where not all are."""
    if not origin.key.branch:
        return ""
    at = [d for d in picked(sites, step=origin.key.step) if d.key.branch]
    differ = {d.key.branch for d in at if d.verdict == "fail"}
    every = dict.fromkeys(d.key.branch for d in at)
    hit, clean = [b for b in every if b in differ], [b for b in every if b not in differ]
    return f"only branch {', '.join(hit)} differs; {', '.join(clean)} agrees" if hit and clean else ""


def without_trace(sites: Sequence[SiteDiff]) -> bool:
    """Whether modules differ, each by itself, and what is predicted agrees."""
    begins = all(d.introduced and d.key.module not in ("", LOOP) for d in picked(sites, "fail"))
    return begins and next(picked(sites, "pass", which=is_prediction), None) is not None


def _perhaps_another(sites: Sequence[SiteDiff], origin: Origin) -> str:
    """That all which is made of a differing value agrees, as where an implementation's norm has its modulation in it,
    or a projection the activation before it.

    It stays a difference: a gate of zero hides what a module gives too.
    """
    far = any(d.key == origin.key and d.distance.rel_l2 > ANOTHER for d in picked(sites, step=origin.key.step))
    if not far or not without_trace(sites):
        return ""
    behind = itertools.dropwhile(lambda d: d.key != origin.key, sites)
    if not any(is_prediction(d) and d.verdict == "pass" for d in behind):
        return ""  # nothing is made of the last value
    return (
        f"nothing behind {origin.key.module} differs: the candidate may give its name to another thing, as a norm with "
        "its modulation or a projection with the activation before it, or nothing beyond its floor is made of it"
    )


def _rows(sites: Sequence[SiteDiff], origin: Origin, grid: tuple[int, int, int] | None) -> str:
    """Where in the rows of the origin the difference lies, where it is not everywhere."""
    keys = {origin.key} if origin.key.site != VIDEO else {origin.key, origin.key.read}
    here = [d for d in picked(sites, step=origin.key.step) if d.key in keys]
    # Of a video what is shown, which comes behind it: a side may have cut every frame.
    at = replace(here[-1], key=origin.key) if here else None
    if at is None or at.key.site == _FRAMES or any(math.isnan(b) for b in at.bins):
        return ""
    far = np.asarray(at.bins) > LINF_LIMIT
    # Where most of the others are above their floors too it lies everywhere, and is largest there.
    if not far.any() or far.all() or np.median(np.asarray(at.bins)[~far]) > 1.0:
        return ""
    hit = np.flatnonzero(far).tolist()
    tokens = _tokens(at)
    if tokens is None:
        return f"at {at.key.site} the difference lies in {len(hit)} of {len(at.bins)} parts of its rows"
    size = Geometry(*at.frame).rows_per_bin * tokens / at.frame[0]
    spans = [(int(i * size), min(tokens, math.ceil((i + 1) * size))) for i in hit]
    if at.key.site == VIDEO:  # a bin over the end of a frame says nothing of which, where another lies within one
        spans = [span for span in spans if span[1] - span[0] == 1] or spans
    lies = np.zeros(tokens, bool)
    for first, last in spans:
        lies[first:last] = True
    edges = np.flatnonzero(np.diff(lies, prepend=False, append=False)).reshape(-1, 2).tolist()
    where = ", ".join(str(first) if last - first == 1 else f"{first} to {last - 1}" for first, last in edges[:_MOST])
    if at.key.site == VIDEO:
        alone = "; the first, which sees no other, agrees" if edges == [[1, tokens]] else ""
        return f"at {at.key.site} the difference lies in frames {where} of {tokens}{alone}"
    text = "text" in at.key.port.split("@")[1:] or at.rows != ""
    sentence = f"at {at.key.site} the difference lies in {'text ' if text else ''}tokens {where} of {tokens}"
    if not text and grid is not None and math.prod(grid) == tokens and grid[0] > 1:
        frames = np.flatnonzero(lies.reshape(grid).any(axis=(1, 2))).tolist()
        if len(frames) < grid[0]:
            sentence += f": frames {', '.join(map(str, frames[:_MOST]))} of {grid[0]}"
    return sentence


def _tokens(d: SiteDiff) -> int | None:
    """How many tokens the site's rows are: several rows a token where heads stand apart; of a video its frames.

    None without a token axis: [1, tokens, channels] has one, and [1, tokens, heads, channels] of an attention.
    """
    shape, (rows, channels) = d.shapes[0], d.frame
    heads = d.key.module.endswith(".attention") and len(shape) == 4
    if d.key.site != VIDEO and (shape[0] != 1 or not (len(shape) == 3 or heads) or d.key.module == LOOP):
        return None
    per_token = math.prod(shape[2:])
    return rows * channels // per_token if len(shape) >= 3 and per_token and rows else None


def _dtypes(sites: Sequence[SiteDiff], declared: Iterable[str]) -> str:
    """One sentence for all sites whose floating dtype differs, unless a declared dtype explains them."""
    if "dtype" in set(declared):
        return ""
    others = [*picked(sites, which=_is_of_two_floats)]
    if not others:
        return ""
    modules, pairs = {d.key.module for d in others}, {d.dtypes for d in others}
    kinds = ", ".join(sorted(f"{a} against {b}" for a, b in pairs))
    count = f"{len(modules)} modules have" if len(modules) > 1 else "1 module has"
    return f"dtype map: {count} another dtype ({kinds}), first {others[0].key.site}"


def _is_of_two_floats(d: SiteDiff) -> bool:
    return d.dtypes[0] != d.dtypes[1] and set(d.dtypes) <= set(_FLOATS)


def _nonfinite(sites: Sequence[SiteDiff]) -> str:
    """Where values are NaN or infinite on the candidate alone first, and what takes them in."""
    bad = (d for d in sites if d.nonfinite[1] > d.nonfinite[0] and not d.key.is_apart)
    first = next(bad, None)
    if first is None:
        return ""
    own = first.key
    behind = (d.key for d in bad if d.key.is_input and d.key.branch == own.branch and d.key.module != own.module)
    taker = next(behind, None)
    taken = f", taken in by {taker}" if taker is not None else ""
    how = "in" if own.is_input else "produced by"
    return f"NaN or Inf: {first.nonfinite[1]} values, first {how} {own}{taken}"
