"""Each site against its floor, and where a divergence is born.

The rule (docs/how-it-works.md): a site is beyond its floor above 3 times it in L2, or above 5 times it in any row bin
or, where values are held, in its largest element. A divergence is born where the inputs agree and the output does not
(`module`), or at an input although everything before agreed (`input`); what only grew is `propagated`. Padded rows are
ignored and never decide.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from parity.compare.result import Birth, SiteDiff
from parity.records import AFTER, LOOP, Key
from parity.settings import BY_NAME, DeepCache, Difference, deep_cache

L2_LIMIT = 3.0
LINF_LIMIT = 5.0
BIN_LIMIT = LINF_LIMIT
JUMP = 30.0
"""Growth of the ratio to the floor from one site to the next that propagation does not explain: floors grow along with
what they bound, so ratios are carried on nearly unchanged (tiny model, joint mask dropped: 2e4 to 1.5e5 at all later
blocks)."""

_STEPPED = (("", "latents.before"), ("", "pred_original.before"), ("", "history"), ("", "sigma"), ("", "dt"))

_LOOP_INPUTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    # what each of the loop's values is computed from: (branch, port)
    "noise_pred": (("cond", "noise_pred"), ("uncond", "noise_pred")),
    "latents.after": (("", "noise_pred"), *_STEPPED),
    "pred_original.after": (("", "noise_pred"), *_STEPPED),
}
_LATENTS = (f"{LOOP}:latents.before", f"{LOOP}:latents.after")
SCHEDULE = "schedule"
"""Module of the records of a whole schedule."""
_NUMBERS = ("timestep", "sigma", "dt", "step_index")
"""Of the loop's values those that a schedule gives."""


@dataclass(frozen=True, slots=True)
class Excuse:
    """A site that a declared difference changes by design.

    Attributes:
        glob: over `module` or `module:port`. most: relative L2 distance up to which it is that difference's doing.
        cache: a feature cache, of which the steps count at which it skips blocks; None for every step.
    """

    glob: str
    most: float = math.inf
    cache: DeepCache | None = None

    def covers(self, key: Key, rel_l2: float) -> bool:
        if self.cache is not None and self.cache.full(key.step):
            return False
        named = fnmatch.fnmatchcase(key.site, self.glob) or fnmatch.fnmatchcase(key.module, self.glob)
        return named and not rel_l2 > self.most


def excuses(differing: Iterable[Difference]) -> tuple[Excuse, ...]:
    """What these declared differences excuse."""
    found: list[Excuse] = []
    for difference in differing:
        if difference.setting in BY_NAME:  # a golden may have a setting of another version
            setting = BY_NAME[difference.setting]
            found += [Excuse(glob, setting.expected_within) for glob in setting.expected_at]
        if difference.setting == "cache":
            caches = (deep_cache(difference.reference), deep_cache(difference.candidate))
            found += [excuse for cache in caches if cache is not None for excuse in _cached(cache)]
    return tuple(found)


def excused(key: Key, rel_l2: float, excuses: Iterable[Excuse]) -> bool:
    """Whether an excuse covers this distance at this site, at this step."""
    return any(excuse.covers(key, rel_l2) for excuse in excuses)


def _cached(cache: DeepCache) -> list[Excuse]:
    """The skipped blocks, which only one side calls, and what the kept residual is handed to."""
    blocks = [f"transformer_blocks.{i}{below}" for i in range(cache.start, cache.end) for below in ("", ".*")]
    following = f"transformer_blocks.{cache.end}"
    taken = (f"{following}:in.hidden_states*", f"{following}:in.encoder_hidden_states*", "norm_final:in.input*")
    return [Excuse(glob, cache=cache) for glob in (*blocks, *taken, "norm_out:in.x*")]


@dataclass
class Births:
    """Says where divergences begin, step by step; remembers only whether an earlier step already differed.

    Attributes:
        excuses: the sites that a declared differing setting changes by design.
        dirty: whether the latents were beyond their floors so far. scheduled: whether a schedule was.
    """

    excuses: tuple[Excuse, ...] = ()
    dirty: bool = False
    scheduled: bool = False

    def of(self, diffs: Sequence[SiteDiff], inputs: Mapping[object, float], uncompared: Set[object]) -> list[SiteDiff]:
        """Sites of one step with their verdicts and births; those within their floors may be left out.

        Args:
            inputs: the worst severity among the compared inputs of each call, of all sites. uncompared: calls with
                others.
        """
        seen: dict[str, float] = {}
        made: dict[str, float] = {}
        numbers = 0.0
        inside: dict[object, float] = {}
        judged = []
        for d in diffs:
            if d.key.is_apart:
                judged.append(replace(d, verdict="ignored"))
                continue
            if d.verdict == "not compared" or not beyond(d):
                judged.append(d)
                continue
            if unknown(d):
                judged.append(replace(d, verdict="inconclusive"))
                continue
            excuse = excused(d.key, d.distance.rel_l2, self.excuses)
            before = self._before(d, made if is_given(d) else seen, numbers)
            given = inputs.get(call_of(d.key))
            if call_of(d.key) in uncompared:
                given = max(given or 0.0, before)
            birth = _birth(d, given, before, inside.get((d.key.branch, d.key.module), 0.0))
            judged.append(replace(d, birth=birth, verdict="harmless" if excuse else "fail"))
            if is_number(d.key):
                numbers = max(numbers, severity(d))
                self.scheduled = self.scheduled or d.key.module == SCHEDULE
                continue
            seen[d.key.branch] = max(seen.get(d.key.branch, 0.0), severity(d))
            if not (d.key.is_input and d.key.module == ""):  # one argument of the model does not feed another
                made[d.key.branch] = max(made.get(d.key.branch, 0.0), severity(d))
            for module in above(d.key.module):
                where = (d.key.branch, module)
                inside[where] = max(inside.get(where, 0.0), severity(d))
        return judged

    def _before(self, d: SiteDiff, seen: Mapping[str, float], numbers: float) -> float:
        """The worst severity beyond the floor upstream of this site, excused or not; 0 where there is none.

        Args:
            seen: by branch. numbers: of the schedule, which feeds no argument of the model that is given from outside.
        """
        if self.dirty and (d.key.site == _LATENTS[0] or d.key.stage == AFTER):
            return math.inf
        if self.scheduled and is_number(d.key) and d.key.module == LOOP:
            return math.inf
        return max(seen.get(d.key.branch, 0.0), seen.get("", 0.0), 0.0 if is_given(d) else numbers)


ONE_SIDED = "observed on one side only"


def is_number(key: Key) -> bool:
    """Whether it is a number of the schedule: the whole one, or what the loop takes of it."""
    return key.module == SCHEDULE or (key.module == LOOP and key.port in _NUMBERS)


def is_given(d: SiteDiff) -> bool:
    """Whether it is an argument of the model that no number of the schedule is in, as embeddings and masks are."""
    of_the_loop = d.key.port == "in.t" or any(word in d.key.port for word in ("time", "sigma"))
    number = d.dtypes[0] != "" and len(d.shapes[0]) <= 1
    return d.key.is_input and d.key.module == "" and not (of_the_loop or number)


def beyond(d: SiteDiff) -> bool:
    """Whether a site is beyond its floor; a NaN or a missing floor is, agreement is never assumed."""
    r = d.distance.ratio
    if math.isnan(r):
        return d.distance.rel_l2 != 0.0
    return r > L2_LIMIT or peak(d) > LINF_LIMIT


def peak(d: SiteDiff) -> float:
    """The worst ratio to the floor of a row bin or, where values are held, of the largest element; 0 for none.

    Row bins count beside held values, so that asking for values never lets through what was seen without.
    """
    return max((r for r in (d.linf_ratio, *d.bins) if not math.isnan(r)), default=0.0)


def severity(d: SiteDiff) -> float:
    """The largest ratio to a floor, that of the largest element or row bin scaled to the L2 limit; NaN is infinite."""
    r, worst = d.distance.ratio, peak(d) * L2_LIMIT / LINF_LIMIT
    return max(math.inf if math.isnan(r) and d.distance.rel_l2 != 0.0 else (0.0 if math.isnan(r) else r), worst)


def unknown(d: SiteDiff) -> bool:
    """Whether a site differs and no floor says how much of that is rounding."""
    known = math.isfinite(d.distance.floor) or not math.isnan(d.distance.ratio)
    return not known and math.isfinite(d.distance.rel_l2)


def above(module: str) -> Iterable[str]:
    """The modules around this one, the top one last; none for the loop."""
    while module and module != LOOP:
        module = module.rpartition(".")[0]
        yield module


def _birth(d: SiteDiff, given: float | None, before: float, inside: float) -> Birth:
    """How the divergence at a site beyond its floor starts.

    Args:
        given: the worst severity among the inputs of its call; None without any. before: the worst upstream. inside:
            the worst within this module, whose output hands on what one of its children did.
    """
    if d.key.is_input or (d.key.module == LOOP and d.key.port not in _LOOP_INPUTS):
        return "input" if severity(d) > JUMP * before else "propagated"
    if severity(d) <= JUMP * inside:
        return "propagated"
    if given is None:
        return "module" if severity(d) > JUMP * before else "propagated"
    # An input just within its limit and an output just beyond it is growth, not a birth.
    growth = L2_LIMIT * max(1.0, given) if given <= L2_LIMIT else JUMP * given
    return "module" if severity(d) > growth else "propagated"


def input_severities(diffs: Iterable[SiteDiff]) -> dict[object, float]:
    """The worst severity among the compared inputs of each module call."""
    worst: dict[object, float] = {}
    loop: dict[tuple[str, str], float] = {}
    for d in diffs:
        if d.key.is_apart or d.verdict == "not compared":
            continue
        if d.key.is_input:
            call = call_of(d.key)
            worst[call] = max(worst.get(call, 0.0), severity(d))
        elif d.key.module == LOOP:
            loop[d.key.branch, d.key.port] = severity(d)
    for d in diffs:
        if d.key.module == LOOP and d.key.branch == "" and d.key.port in _LOOP_INPUTS:
            known = [loop[i] for i in _LOOP_INPUTS[d.key.port] if i in loop]
            if known:
                worst[call_of(d.key)] = max(known)
    return worst


def call_of(key: Key) -> object:
    """What an input shares with the outputs of the same call; the loop's values are calls of their own."""
    if key.module == LOOP:
        return (key.branch, key.site)
    return (key.branch, key.module, key.call)
