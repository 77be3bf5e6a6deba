"""Every independent difference of a comparison that failed, not only the first: real ports have several faults at once.

Each is judged on its own inputs: a schedule, an argument of the model, a module whose compared inputs match, and the
relations that are fitted on each side (guidance, step, decode, frames). What only hands on another's difference is not
listed.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from parity.compare.births import LATENTS, call_of, is_unlike
from parity.compare.metrics import ONE_SIDED
from parity.compare.places import AROUND, block_of, both_blocks, code_of, place_of, within
from parity.compare.preflight import NEAR, ROUNDING, ROUNDING_LIMIT, VALUES, WEIGHTS, grouped, sentence_of
from parity.compare.result import Cause, Check, Group, Result, SiteDiff, measured
from parity.compare.sites import introduced, picked
from parity.records import FRAMES, LOOP, Key, above, any_block, caller_of, is_attention
from parity.transforms import ANOTHER, OTHERWISE

_RELATIONS = (f"{LOOP}:noise_pred", f"{LOOP}:latents.after", "decode:in.z", FRAMES)
"""In execution order."""


@dataclass
class Difference:
    """One difference.

    Attributes:
        place: the schedule, an argument, a module or a value of the loop, in words. branches: that have it, in order.
        causes: why, where that is known. key: where it begins, where a judged site says so.
    """

    place: str
    key: Key | None = None
    branches: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.place + (f" ({', '.join(self.branches)})" if self.branches else "")


def differences(result: Result) -> tuple[Difference, ...]:
    """Those that preflight, judged sites and causes show, in execution order; none where the two agree."""
    if result.verdict != "fail":
        return ()
    # The first divergence is often known closer than the sites are, which were judged before it was looked for.
    first = result.origin.key if result.origin is not None and result.origin.birth != "propagated" else None
    codes, alone, checks = _codes(result, first), _named_apart(result), other_weights(result)

    otherwise = {cause.at for cause in result.causes if OTHERWISE in cause.cause}

    def of(site: str) -> str:
        if site in otherwise:
            return site
        return any_block(site) if any_block(site) in alone else codes(site)

    places = {c.check: f"the {c.check}" for c in checks}
    found = {one.place: one for c in checks for one in _of_check(c)}
    resized = _resized(result)
    for d in picked(result.sites, "not compared"):
        if is_unlike(d) and not resized(d):
            found.setdefault(code_of(d.key.site), Difference(place_of(d.key.site), causes=[f"{d.note}: not compared"]))
    made = {of(c.at) for c in result.causes if c.at and c.setting in places}  # of weights, where they show
    again, inside, begun = set[str](), dict[str, Difference](), dict[object, tuple[str, float]]()
    followed, attended = _followed(result), set[object]()  # modules whose attention call is behind
    by_weights, handed_on = _by_weights(result, checks), _handing_on(result, first, again, inside)
    size = {d.key: _size(d) for d in (*result.closer, *introduced(result))}
    for key in (*([first] if first else []), *(d.key for d in introduced(result) if not resized(d))):
        if by_weights(key) or of(key.site) in made or handed_on(key, found):
            continue
        code = of(key.site)
        if key.is_input and code not in alone and (caller := caller_of(key.module)):
            # What the same call's code gives next may be off with it, but not by far more; what it gives behind its
            # attention, which is followed, is not off with what it gives to that.
            place, of_attention = (key.step, key.branch, caller), is_attention(key.module)
            call, here = (*place, place in attended and not of_attention), (code, size.get(key, math.inf))
            attended |= {place} if of_attention and key in followed else set()
            if call not in begun or here[1] > FAR_MORE * begun[call][1]:
                begun[call] = here
            code = begun[call][0]
        one = found.setdefault(code, Difference(place_of(key.site), key))
        if code == of(key.site):
            one.place = both_blocks(one.place, place_of(key.site))
        if key.branch and key.branch not in one.branches:
            one.branches.append(key.branch)
    start = found.get(of(first.site)) if first else None
    sized = {of(d.key.site) for d in picked(result.sites, "fail") if resized(d)} - found.keys()
    for cause in result.causes:
        if start and cause.at and of(cause.at) in sized:
            start.causes.append(cause.cause)
        elif cause.setting in places:
            found[places[cause.setting]].causes.append(cause.cause)
        elif cause.at and not cause.harmless and of(cause.at) in inside and of(cause.at) not in found:
            inside[of(cause.at)].causes.append(cause.cause)
        elif cause.at and not cause.harmless and of(cause.at) not in again - found.keys():
            found.setdefault(of(cause.at), Difference(place_of(cause.at))).causes.append(cause.cause)
    behind = {place_of(site): i + 1 for i, site in enumerate(_RELATIONS)}
    return tuple(sorted(found.values(), key=lambda d: behind.get(d.place, 0) if d.key is None else 0))


FAR_MORE = 30.0
"""Times as many floors as an input of a call's code is off by from which another, behind it, is so by itself. In
HunyuanVideo-1.5 what a norm in bfloat16 gives is off by 193, and what a wrong rotation behind it gives by 16,139."""


def _size(d: SiteDiff) -> float:
    """How many floors a site is off by, by itself where that is known; infinite where no number says so."""
    ratio = d.distance.ratio if math.isnan(d.local.ratio) else d.local.ratio
    return math.inf if math.isnan(ratio) else ratio


def _resized(result: Result) -> Callable[[SiteDiff], bool]:
    """Of a site whether it has more values, or fewer, as the latents have that a loop starts from: of another size of
    the video, or length."""
    start = next((d for d in introduced(result) if d.key.site in LATENTS and d.shapes[0] != d.shapes[1]), None)

    def resized(d: SiteDiff) -> bool:
        if start is None or d.key == start.key or d.shapes[0] == d.shapes[1]:
            return False
        ours, theirs = map(math.prod, start.shapes)
        own, other = map(math.prod, d.shapes)
        return own * theirs == other * ours

    return resized


def _of_check(check: Check) -> Iterator[Difference]:
    """A check's difference; of parameters that differ in several ways, one for each."""
    groups = [group for group in check.groups if not set(group.names).isdisjoint(check.at)]
    kinds = dict.fromkeys(group.kind for group in groups)
    if len(kinds) < 2:
        yield Difference(f"the {check.check}", causes=[check.detail])
        return
    for kind in kinds:
        said = [sentence_of(group, f" of {check.of} parameters") for group in groups if group.kind == kind]
        yield Difference(f"the {check.check} ({kind})", causes=said)


_HALVES = ("bfloat16", "float16")
"""Dtypes that weights may have been rounded to."""


def other_weights(result: Result) -> list[Check]:
    """The checks of preflight that fail by other weights, or say that they were rounded though nobody said so."""
    halved = not any(d.setting == "dtype" for d in result.differing_settings)
    near = (VALUES, *(_HALVES if halved else ()))
    return [c for c in result.preflight if c.computed or c.near in near]


def settled(result: Result) -> Result:
    """A result whose check of a port's parameters leaves to the sites what they show: where the nearest module around a
    parameter whose output was compared agrees, though its values are others, the port holds it in another form."""
    check = next((c for c in result.preflight if c.check == WEIGHTS and any(group.firm for group in c.groups)), None)
    if check is None:
        return result
    shows = _agreeing(result)
    own = {name for group in check.groups for name in group.everywhere if shows(name)}
    left = (_without(group, own) if group.firm else group for group in check.groups)
    form = Group("another form", OWN_FORM, tuple(name for name in check.at if name in own))
    groups = [group for group in (*left, form) if group.names]
    groups.sort(key=lambda group: (not group.firm, not group.kind))
    settled = grouped(replace(check, at=tuple(name for name in check.at if name not in own)), groups)
    if settled.computed and result.verdict == "pass":
        settled = replace(settled, detail=f"{settled.detail}; {UNSEEN}")
    elif result.verdict == "pass":
        result = result.noted(f"{sentence_of(form, ' parameters')}; or the inputs do not exercise them")
    return replace(result, preflight=tuple(settled if c is check else c for c in result.preflight))


OWN_FORM = "are held in a form of their own: the values around them agree"
UNSEEN = "if the port holds them in another form, compare the modules around them in float32"


def _without(group: Group, names: Set[str]) -> Group:
    """A group without some of its parameters."""
    left = [i for i, name in enumerate(group.names) if name not in names]
    notes = tuple(group.notes[i] for i in left) if group.notes else ()
    return replace(group, names=tuple(group.names[i] for i in left), notes=notes)


def _agreeing(result: Result) -> Callable[[str], bool]:
    """Of a parameter whether the nearest module around it agrees, of those whose outputs were compared."""
    outputs = [d for d in (*result.sites, *result.closer) if not d.key.is_input and d.key.module not in AROUND]
    outputs = [d for d in outputs if d.verdict not in ("not compared", "ignored") and d.note != ONE_SIDED]
    compared = {d.key.module for d in outputs}.union(result.shown)
    off = {d.key.module for d in outputs if d.verdict == "fail" and d.introduced}
    shown = set(result.shown) - off
    return lambda name: next((module for module in above(name) if module in compared), "") in shown


SOME = 8
"""Parameters that may have been loaded wrongly, of a port whose others are the reference's; or all of one block."""


def of_weights(result: Result) -> Iterator[Cause]:
    """A cause at each site at which a difference begins in a module some of whose parameters are others, of an input in
    its block; where many are, the port's are its own, unless all are rounded."""
    check = next((c for c in result.preflight if c.check == WEIGHTS and c.at), None)
    if result.verdict != "fail" or result.origin is None or check is None or check.computed:
        return
    blocks = {block_of(name) or name for name in check.at}
    if not check.near and len(check.at) > SOME and len(blocks) > 1:
        return
    shows = _agreeing(result)
    near = {name for group in check.groups if NEAR.get(group.kind) == ROUNDING for name in group.names}
    left = [name for name in check.at if name not in near and not shows(name)]
    begins = {result.origin.key.site: (result.origin.key, result.why.distance)}
    for d in introduced(result):
        begins.setdefault(d.key.site, (d.key, d.distance))
    fix = "load the reference's values, or undo the factor where they are used"
    fix = "load and keep them in the reference's dtype" if check.near in _HALVES else fix
    for key, far in begins.values():
        if not key.module or (check.near and not far.rel_l2 <= ROUNDING_LIMIT):
            continue
        around = (block_of(key.module) or caller_of(key.module)) if key.is_input else key.module
        if made := [name for name in left if within(name.rpartition(".")[0], around)]:
            groups = [_without(group, set(group.names).difference(made)) for group in check.groups]
            said = grouped(check, [group for group in groups if group.names]).detail
            text = f"{place_of(key.site)}: weights that are not the reference's: {said}"
            yield measured(text, WEIGHTS, fix=fix, at=key.site)
            left = [name for name in left if name not in made]


def _by_weights(result: Result, checks: Sequence[Check]) -> Callable[[Key], bool]:
    """Of a site whether its module, which may have other weights, differs by them.

    Args:
        checks: see `other_weights`.
    """
    modules = {name.rpartition(".")[0] for c in checks for name in c.at}
    if not modules:
        return lambda key: False
    rounded = all(c.near for c in checks)
    unseen = modules - {d.key.module for d in result.sites}  # at which nothing was observed
    arguments = {d.key.port for d in result.sites if d.key.is_argument}
    given = {call_of(d.key) for d in result.sites if d.key.is_input and d.verdict != "not compared"}
    beyond = {d.key for d in result.sites if rounded and d.local.rel_l2 > ANOTHER}  # what rounded weights make of it
    projected = _projected(result, unseen)
    behind = _behind(result, modules)
    behind |= {d.key for d in (*result.sites, *result.closer) if d.note == OF_WEIGHTS}

    def explain(key: Key) -> bool:
        if key in behind or key in beyond:
            return key in behind
        if key.module in AROUND:
            return key.module == "" and not key.is_input and bool(unseen)
        caller = caller_of(key.module)
        if key.is_input:  # of its caller's own parameters; what the model is given it hands on as it is
            made = caller in modules or (key.branch, key.module) in projected
            return made and not (caller == "" and key.port in arguments)
        own = any(within(module, key.module) for module in modules)
        # What no input was compared of, its caller's parameters may be in.
        return own or (call_of(key) not in given and caller != "" and caller in modules)

    return explain


def _projected(result: Result, unseen: Collection[str]) -> set[tuple[str, str]]:
    """By branch, the attention calls whose inputs that differ are no more than the modules with other weights that may
    make them; by its name, as nothing else tells, what projects the output makes none.

    Args:
        unseen: modules with other weights, at which nothing was observed.
    """
    inputs = defaultdict[tuple[str, str], set[str]](set)
    for key in (d.key for d in picked(result.sites, "fail") if d.key.is_input and is_attention(d.key.module)):
        inputs[key.branch, key.module].add(key.port)
    made = {
        module: [m for m in unseen if within(m, caller_of(module)) and "out" not in m.removeprefix(caller_of(module))]
        for _, module in inputs
    }
    return {at for at, ports in inputs.items() if len(ports) <= len(made[at[1]])}


OF_WEIGHTS = "made of values that the candidate does not hand out, with other weights"
"""The note of a site of which nothing more is known."""


def _behind(result: Result, modules: Collection[str]) -> set[Key]:
    """The sites that hand on what modules with other weights gave within their floors: they are not off by far more."""
    found, off = set[Key](), dict[tuple[int, str], float]()
    for d in result.sites:
        at, outside = (d.key.step, d.key.branch), d.key.is_input or d.key.module in AROUND
        if d.introduced and math.isnan(d.local.ratio) and _size(d) <= FAR_MORE * off.get(at, 0.0):
            found.add(d.key)
        elif d.verdict == "pass" and not outside and any(within(module, d.key.module) for module in modules):
            off[at] = max(off.get(at, 0.0), d.distance.ratio)
    return found


def _handing_on(
    result: Result, first: Key | None, again: set[str], inside: dict[str, Difference]
) -> Callable[[Key, Mapping[str, Difference]], bool]:
    """Of a site whether it only hands on one of the differences found before it, or what begins inside it.

    Args:
        first: where the first begins. again: to hold the codes of those whose values another has. inside: to hold, by
            the code of a module, the difference inside it.
    """
    here = () if first is None else picked(result.sites, "pass", step=first.step)
    agrees = {d.key.branch for d in here if first is not None and d.key.site == first.site}
    explained = {d.key for d in result.closer if not d.introduced}
    measured = _followed(result)
    same = {d.key: replace(d.key, site=d.same) for d in introduced(result) if d.same and d.key.is_input}
    shown = _shown_behind(result, first)  # what is measured behind it is a difference of its own

    def handed(key: Key, found: Mapping[str, Difference]) -> bool:
        own = key in measured and shown and code_of(key.site) != shown
        apart = (d for d in found.values() if not {key, d.key} <= measured and not (own and d.key == first))
        within_it = next((d for d in apart if _hands_on(key, d.key, first, agrees)), None)
        if first and key != first and (within_it or (key in explained and key not in measured)):
            inside.update({code_of(key.site): within_it} if within_it else {})
            return True
        other = same.get(key)
        if other is None or code_of(other.site) == code_of(key.site):
            return False
        by_another = (other.is_input and code_of(other.site) in found) or _hands_on(other, first, first, agrees)
        if by_another:  # the model hands one value to several modules, or on
            again.add(code_of(key.site))
        return by_another

    return handed


def _codes(result: Result, origin: Key | None) -> Callable[[str], str]:
    """Whose code makes a value: as `code_of`, but where a divergence begins at an attention call. That call is seen in
    one block; in another the same fault shows at the next module behind it."""
    if origin is None or not is_attention(origin.module) or origin in _followed(result):
        return code_of
    first, caller = code_of(origin.site), any_block(caller_of(origin.module))
    before = {any_block(d.key.module) for d in itertools.takewhile(lambda d: d.key != origin, result.closer)}
    shown = _shown_behind(result, origin)

    def of(site: str) -> str:
        module, _, port = site.partition(":")
        beside = (port.startswith("in.") and any_block(caller_of(module)) == caller) or code_of(site) == shown
        return first if beside and any_block(module) not in before else code_of(site)

    return of


def _followed(result: Result) -> Set[Key]:
    """The sites that differ by themselves, made of the candidate's own values."""
    return {d.key for d in (*introduced(result), *result.closer) if d.local.rel_l2 > 0}


def _named_apart(result: Result) -> Set[str]:
    """The inputs of attention calls, in whichever block, of which it is known what was done, where it is not known of
    the first input of the same call: then not one thing was done to both."""
    known = {cause.at for cause in result.causes}
    given = [d.key for d in introduced(result) if d.key.is_input and is_attention(d.key.module)]
    first = {call_of(key): key.site for key in reversed(given)}
    return {any_block(key.site) for key in given if key.site in known and first[call_of(key)] not in known}


def _shown_behind(result: Result, origin: Key | None) -> str:
    """Whose code makes the first followed value that shows a divergence of an attention call that is not followed;
    empty for a divergence elsewhere, or where nothing shows it."""
    if origin is None or not is_attention(origin.module):
        return ""
    place = (origin.step, origin.branch)
    followed = (d.key for d in introduced(result) if d.local.rel_l2 > 0 and (d.key.step, d.key.branch) == place)
    return next((code_of(key.site) for key in followed), "")


def in_order(result: Result) -> Result:
    """With its causes in the order of the differences that they are of; those of no place are of the first, and what
    does no harm comes last."""
    place = {cause: i for i, difference in enumerate(differences(result)) for cause in difference.causes}
    causes = sorted(result.causes, key=lambda cause: (cause.harmless, place.get(cause.cause, 0)))
    return replace(result, causes=tuple(causes))


def _hands_on(key: Key, inner: Key | None, origin: Key | None, agrees: Set[str]) -> bool:
    """Whether it is an output of a module inside which a difference begins: the first one, or one of another step, as
    what is inside it is the same at every step, and in every branch but those (`agrees`) in which that agrees."""
    if inner is None or key.is_input or key.module == "" or not inner.module.startswith(f"{key.module}."):
        return False
    return inner.step != key.step or (inner == origin and key.branch not in agrees)


def closest(result: Result) -> Sequence[SiteDiff]:
    """The sites that say most: those of the closer look, if there was one, and what was introduced elsewhere."""
    if not result.closer:
        return result.sites
    block = min((d.key.module for d in result.closer), key=len)
    seen = {d.key for d in result.closer}
    more = (d for d in introduced(result) if not within(d.key.module, block))
    return (*result.closer, *(d for d in more if d.key not in seen))
