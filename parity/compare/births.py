"""Each site against its floor, and where a divergence is born.

The rule (docs/how-it-works.md): a site is beyond its floor above 3 times it in L2, or above 5 times it in any row bin
or, where values are held, in its largest element. A divergence is born where the inputs agree and the output does not
(`module`), or at an input although everything before agreed (`input`); what only grew is `propagated`. Padded rows are
ignored and never decide.
"""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from parity.compare.metrics import UNREAD, axes_between
from parity.compare.result import Birth, SiteDiff
from parity.compare.sites import Sites, beyond, picked, severity
from parity.compare.values import PREDICTED
from parity.floors import L2_LIMIT
from parity.records import AFTER, FRAMES, LOOP, SCHEDULE, Key, Record, above, is_attention
from parity.settings import BY_NAME, DeepCache, Difference, deep_cache
from parity.transforms import WITHIN

_STEPPED = ("noise_pred", "latents.before", "pred_original.before", "history", "timestep_back", "sigma", "dt")
_LOOP_INPUTS = {"noise_pred": ("noise_pred",), "latents.after": _STEPPED, "pred_original.after": _STEPPED}
"""What each of the loop's values is computed from; noise_pred of those of the branches."""
LATENTS = (f"{LOOP}:latents.before", f"{LOOP}:latents.after")
Argument = tuple[str, str]
"""Branch and site of what the model is given."""
_ARGUMENT, _LATENTS, _OTHER = range(3)
"""Kinds of sites: arguments of the model, of which none is in another; the loop's latents, which are in some; the rest,
which may be in any."""
_Place = tuple[str, int]
"""A branch and a kind of its sites."""
MUCH_MORE = 10.0
"""Of the relative distance of latents: an argument that holds them and is so far apart differs by something else."""
SCALED = 1 - 1e-6
"""Cosine of two tensors above which one is the other times a factor."""
UNITS = (1.0, 1e-3)
"""In which models take the loop's timestep: as it is, or a thousandth."""
_NUMBERS = ("timestep", "timestep_back", "sigma", "dt", "step_index")
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
        if setting := BY_NAME.get(difference.setting):  # a golden may have a setting of another version
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


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the reference's model is given at a step, beside what it was given before, bit for bit.

    Attributes:
        moving: arguments that are others than when the model was first called, or that are named as latents are: steps
            may be in them.
        constant: those that have been as they were then at each step.
        handed: inputs inside the model that are arguments of it, as they are, which agree. alone: calls that are given
            nothing else, nor what is not made of these alone.
        whole: sites that hold all branches at once.
    """

    moving: Container[Argument] = ()
    constant: Container[Argument] = ()
    handed: Container[Key] = ()
    alone: Container[object] = ()
    whole: Container[Key] = ()


@dataclass
class Births:
    """Says where divergences begin, step by step; remembers only whether an earlier step already differed.

    Attributes:
        excuses: the sites that a declared differing setting changes by design.
        dirty: whether what a step goes on from was beyond its floor so far; else left is how far the last of it was
            off within its limits. scheduled: whether a schedule was.
        latents: their shape. apart: how far they are apart before the step; NaN where nobody knows. arguments: of the
            step's model.
    """

    excuses: tuple[Excuse, ...] = ()
    dirty: bool = False
    left: float = 0.0
    scheduled: bool = False
    latents: tuple[int, ...] = ()
    apart: float = math.nan
    arguments: Arguments = Arguments()

    def judge(self, sites: Sites, arguments: Arguments) -> None:
        """Say of the sites of one step what those beyond their floors come to, and where a divergence begins.

        Padded rows do not decide, nor does what was not compared.

        Args:
            arguments: what the reference's model is given at this step.
        """
        self.arguments = arguments
        before = next(picked(sites, which=_is_start), None)
        self.latents, self.apart = ((), math.nan) if before is None else (before.shapes[0], before.distance.rel_l2)
        if far := sites.where("pass", beyond=True):
            self._begin(sites, far)
        # Where nobody recorded the latents, the next step goes on from what they are made of.
        made = [*picked(sites, which=_is_latents)] or [*picked(sites, which=_is_made)]
        self.dirty = self.dirty or any(map(beyond, made))
        self.left = severity(made[-1]) if made else self.left

    def _begin(self, sites: Sites, far: Sequence[int]) -> None:
        """Say of the sites that are beyond their floors, at these positions, how they come to be."""
        inputs, numbered = input_severities(sites), any(d.key.site == f"{LOOP}:dt" for d in sites)
        uncompared = {call_of(d.key) for d in picked(sites, "not compared") if d.key.is_input and d.note not in KNOWN}
        padded = {call_of(d.key) for d in picked(sites, "pass", which=is_input) if d.note == UNREAD}
        # How far sites beyond their floors were so far: infinitely, once something was introduced there.
        worst = defaultdict[_Place, float](float, {("", _LATENTS): _start(sites)})
        inside = defaultdict[tuple[str, str], float](float)
        numbers, masked = False, set[tuple[str, str]]()
        for i in far:
            d = sites[i]
            if unknown(d):
                sites[i] = replace(d, verdict="inconclusive")
                continue
            before = self._inherited(d, numbers, worst)
            unnumbered = numbers and not numbered and d.key.site == LATENTS[1]  # stepped by what nobody recorded
            given = inputs.get(call_of(d.key), 0.0 if call_of(d.key) in self.arguments.alone else None)
            of_several = d.key.site == FRAMES  # made of each call of the decoder
            read = (d.key.branch, "") in masked and call_of(d.key) in padded  # by another mask, or none
            if call_of(d.key) in uncompared or read or _masked(d.key, masked) or unnumbered or of_several:
                given = max(given or 0.0, before)
            within = inside[d.key.branch, d.key.module]
            birth = _birth(d, given, before, within)
            size = severity(d) if birth == "propagated" and math.isfinite(max(before, within)) else math.inf
            excuse = excused(d.key, d.distance.rel_l2, self.excuses)
            sites[i] = replace(d, verdict="harmless" if excuse else "fail", birth=birth)
            if is_number(d.key):
                numbers, self.scheduled = True, self.scheduled or d.key.module == SCHEDULE
                continue
            if is_mask_given(d):
                masked.add((d.key.branch, d.key.module))
            place = (d.key.branch, _kind(d.key))
            worst[place] = max(worst[place], size)
            for module in above(d.key.module):
                inside[d.key.branch, module] = max(inside[d.key.branch, module], size)

    def _inherited(self, d: SiteDiff, numbers: bool, worst: Mapping[_Place, float]) -> float:
        """How far off was what may be in a site.

        Args:
            numbers: whether the schedule's were. worst: how far sites were so far.
        """
        at, of_latents = (d.key.branch, d.key.site), self._of_latents(d)
        more = of_latents and not numbers and d.distance.rel_l2 > MUCH_MORE * self.apart
        if d.key in self.arguments.handed or more:
            return 0.0
        # Of an earlier step it may hold the latents, what a loop in segments makes of them, the schedule's numbers.
        moving = is_given(d) and at in self.arguments.moving
        carried = moving or d.key.site == LATENTS[0] or d.key.stage == AFTER or _is_named(d)
        own = is_given(d, at in self.arguments.constant)
        timed = (_kind(d.key) == _ARGUMENT and not own) or (is_number(d.key) and d.key.module == LOOP)
        scaled = of_latents and d.cosine > SCALED  # by a function of sigma, as some schedulers do
        if (self.dirty and carried) or (self.scheduled and timed) or (numbers and (scaled or not own)):
            return math.inf
        least = _ARGUMENT
        if _kind(d.key) == _ARGUMENT:
            least = _LATENTS if of_latents else _OTHER
        # What the loop makes of all branches follows all of them.
        of_all = (d.key.module == LOOP and d.key.branch == "" and not is_number(d.key)) or d.key in self.arguments.whole
        into = (
            far for (branch, kind), far in worst.items() if kind >= least and (of_all or branch in ("", d.key.branch))
        )
        left = self.left if d.key.stage == AFTER or d.key.site == LATENTS[0] else 0.0
        return max((left, *into))

    def _of_latents(self, d: SiteDiff) -> bool:
        """Whether an argument of the model may be made of latents: it moves from step to step as they do. In the first
        step it has their pixels, or as many values."""
        at, shape, latents = (d.key.branch, d.key.site), d.shapes[0], self.latents
        if not is_given(d) or at in self.arguments.constant:
            return False
        if at in self.arguments.moving or not latents:
            return True
        pixels = shape[-2:] == latents[-2:] or (shape[-1:] == latents[-1:] and len(shape) == len(latents))
        return pixels or math.prod(shape) % math.prod(latents) == 0


def _start(sites: Iterable[SiteDiff]) -> float:
    """How far off the latents are before the step, or what the model is given, within their limits: what comes of
    them may be as far."""
    given = (d for d in sites if (d.key.site == LATENTS[0] or is_argument(d)) and d.verdict == "pass")
    return max((severity(d) for d in given if not beyond(d)), default=0.0)


def is_input(d: SiteDiff) -> bool:
    """Whether it is what a module is given."""
    return d.key.is_input


def _is_start(d: SiteDiff) -> bool:
    return d.key.site == LATENTS[0]


def _is_latents(d: SiteDiff) -> bool:
    return d.key.site in LATENTS


def _is_made(d: SiteDiff) -> bool:
    return (d.key.module == "" and not d.key.is_input) or _is_named(d)


def _is_named(d: SiteDiff) -> bool:
    """Whether it is what a script names outside the model's calls."""
    return d.key.branch == "" and d.key.module not in ("", LOOP, SCHEDULE) and not d.key.is_input


def _masked(key: Key, masked: Set[tuple[str, str]]) -> bool:
    """Whether it is an attention call of a module that is given another mask, which is no input of the call."""
    attention = is_attention(key.module)
    return attention and any((key.branch, module) in masked for module in above(key.module))


def _kind(key: Key) -> int:
    if key.is_argument:
        return _ARGUMENT
    return _LATENTS if key.site in LATENTS else _OTHER


def is_number(key: Key) -> bool:
    """Whether it is a number of the schedule: the whole one, or what the loop takes of it."""
    return key.module == SCHEDULE or (key.module == LOOP and key.port in _NUMBERS)


def is_argument(d: SiteDiff) -> bool:
    """Whether it is a tensor that the model is given, no mask and no timestep."""
    return d.key.is_argument and "mask" not in d.key.port and min(map(len, d.shapes)) > 1


CUT = "without the padding that the mask leaves out"
"""The note of text of which one side has its valid rows alone."""
SAME_KEYS = "it lets as many keys through, and the rows that it reads are the reference's"
"""The note of a mask of another form, or order."""
MOVED = "the reference's values in another order, as the rows are that they are for"
"""The note of a table of positions."""
KNOWN = (SAME_KEYS, MOVED)
"""Notes of inputs that are not compared, where the rows that they are for agree."""


def is_unlike(d: SiteDiff) -> bool:
    """Whether it is an argument of the model that does not line up: of another length, not with its channels elsewhere,
    nor text without its padding, nor what is given to other calls."""
    lines_up = d.shapes[0][1:] == d.shapes[1][1:] or bool(axes_between(*d.shapes))
    return d.verdict == "not compared" and is_argument(d) and d.note != CUT and not lines_up


def is_prediction(d: SiteDiff | Record) -> bool:
    """Whether it is a prediction, of a branch or the guided one."""
    return d.key.site == PREDICTED


def is_given(d: SiteDiff, constant: bool = False) -> bool:
    """Whether it is an argument of the model that no number of the schedule is in, as embeddings and masks are.

    Args:
        constant: whether it is the same at every step, as an embedded guidance scale is, whatever its name.
    """
    of_the_loop = d.key.port == "in.t" or any(word in d.key.port for word in ("time", "sigma"))
    number = d.dtypes[0] != "" and len(d.shapes[0]) <= 1
    return d.key.is_argument and (constant or not (of_the_loop or number))


def is_mask_given(d: SiteDiff) -> bool:
    """Whether it is an input that may say which keys are read: by its name, its dtype, or as None on one side."""
    return d.key.is_input and ("mask" in d.key.port or "bool" in d.dtypes or not any(d.dtypes))


def unknown(d: SiteDiff) -> bool:
    """Whether a site differs and no floor says how much of that is rounding."""
    known = math.isfinite(d.distance.floor) or not math.isnan(d.distance.ratio)
    return not known and math.isfinite(d.distance.rel_l2)


def _birth(d: SiteDiff, given: float | None, before: float, inside: float) -> Birth:
    """How the divergence at a site beyond its floor starts: what is introduced is more than what came in grows to.

    Args:
        given: the worst severity among the inputs of its call; None without any. before: the worst upstream. inside:
            the worst within this module, whose output hands on what one of its children did. Both are infinite where a
            difference was introduced there.
    """
    computed = not (d.key.is_input or (d.key.module == LOOP and d.key.port not in _LOOP_INPUTS))
    source = max(before if given is None else given, inside) if computed else before
    if source > L2_LIMIT and math.isinf(max(before, inside)):
        return "propagated"
    # Floors grow along with what they bound, so that ratios are carried on nearly unchanged (tiny model, joint mask
    # dropped: 2e4 to 1.5e5 at all later blocks).
    introduced = severity(d) > L2_LIMIT * max(1.0, source)
    return ("module" if computed else "input") if introduced else "propagated"


def input_severities(diffs: Iterable[SiteDiff]) -> dict[object, float]:
    """The worst severity among the compared inputs of each module call; infinite where a number is another: of a
    timestep that is rounded an embedding makes other phases."""
    worst: dict[object, float] = {}
    loop: dict[tuple[str, str], float] = {}
    for d in diffs:
        if d.key.is_apart or d.verdict == "not compared":
            continue
        if d.key.is_input:
            call = call_of(d.key)
            other = len(d.shapes[0]) < 2 and d.distance.rel_l2 > WITHIN
            worst[call] = max(worst.get(call, 0.0), math.inf if other else severity(d))
        elif d.key.module == LOOP:
            loop[d.key.branch, d.key.port] = severity(d)
    for port, made_of in _LOOP_INPUTS.items():
        of_branches = port == "noise_pred"
        if known := [x for (branch, name), x in loop.items() if name in made_of and bool(branch) == of_branches]:
            worst["", f"{LOOP}:{port}"] = max(known)
    return worst


def call_of(key: Key) -> object:
    """What an input shares with the outputs of the same call; the loop's values are calls of their own."""
    if key.module == LOOP:
        return (key.branch, key.site)
    return (key.branch, key.module, key.call)
