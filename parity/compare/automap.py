"""Proposing rename rules: which module of the candidate is which of the reference, from what they computed.

Problem. Two implementations of one model name their modules differently, and writing rules for hundreds of modules by
hand is an hour's work that the recorded numbers can do.

How. Modules that only one side has are compared by their outputs of one step: only where branch, call, port, row
frame and shape are the same, by the relative distance of their sketches. A pair is accepted if each is the other's
nearest and clearly so: nearer than half of the second nearest, and than half of what unrelated tensors are apart.
Where outputs tie (a container and its last child) or nothing is near (the module diverges), its inputs decide. What
stays ambiguous is listed with its candidates and not mapped. Accepted pairs that differ in their numbers alone become
one rule, `blocks\\.(\\d+)` for all blocks, if it contradicts none of them. Inputs of mapped modules are matched
likewise, and give port rules.

Names that both sides have are never mapped: where all agree, nothing is proposed.

Cost. One matrix product of the sketches of each shape: a second for 2,000 modules.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.preflight import few
from parity.golden.rename import Rename, Rule
from parity.records import LOOP, Record, StepRecords
from parity.sketch import Geometry, of_the_whole
from parity.transforms import norm

CLEARLY = 0.5
"""The nearest must be nearer than this share of the second nearest's distance."""
UNRELATED = 1.0
"""Relative distance counted as the second nearest's where there is none: unrelated tensors are sqrt(2) apart."""
MOST_BY_INPUTS = 256
"""Modules of one signature that are still compared by their inputs where their outputs are unrelated."""
MOST_NOTES = 12

Signature = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed mapping.

    Attributes:
        rename: the rules. notes: how many modules were matched, and what was ambiguous or not matched.
    """

    rename: Rename
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Module:
    """A module's tensors of one step; padded rows are left out.

    Attributes:
        signature: what a module must share to be compared; empty for one without outputs.
    """

    name: str
    signature: Signature
    outputs: tuple[Record, ...]
    inputs: tuple[Record, ...] = ()


def propose(reference: StepRecords, candidate: StepRecords) -> Proposal:
    """Propose rules that rename the candidate's modules to the reference's, from one step of both."""
    ours, theirs = _modules(reference.records), _modules(candidate.records)
    only_ours = {name: m for name, m in ours.items() if name not in theirs}
    only_theirs = {name: m for name, m in theirs.items() if name not in ours}
    if not only_theirs or not only_ours:
        return Proposal(Rename(), ())
    pairs, ambiguous = _matched(only_ours.values(), only_theirs.values())
    modules = _generalised(pairs, theirs.keys())
    covered = Rename(modules)
    free = [name for name in only_theirs if covered.module(name) not in only_ours]
    unclear, how = [name for name in free if name in ambiguous], "not mapped; say which in a rule"
    notes = [f"--map auto: {name!r} may be one of {few(ambiguous[name])}: {how}" for name in unclear[:MOST_NOTES]]
    if alone := [name for name in free if name not in ambiguous]:
        notes.append(f"--map auto: no module of the reference computes what these {len(alone)} do: {few(alone)}")
    made = f"--map auto: {len(pairs)} of {len(only_theirs)} modules matched by what they compute, {len(modules)} rules"
    ports = _ports(ours, theirs, covered)
    return Proposal(Rename(modules, ports), (made, *notes))


def _modules(records: Iterable[Record]) -> dict[str, _Module]:
    """Modules with their sketched tensors, in execution order."""
    held: defaultdict[str, tuple[list[Record], list[Record]]] = defaultdict(lambda: ([], []))
    for record in records:
        if record.sketch is not None and not record.key.is_apart and record.key.module != LOOP:
            held[record.key.module][record.key.is_input].append(record)
    found = {}
    for name, (outputs, inputs) in held.items():
        own = tuple(sorted(outputs, key=lambda r: r.key))
        alone = len({r.key.port.partition("@")[0] for r in own}) == 1  # of a block that a scan calls, beside None
        ports = ("out" if alone else r.key.port for r in own)
        signature = tuple((r.key.branch, r.key.call, port, r.rows, r.frame) for r, port in zip(own, ports, strict=True))
        found[name] = _Module(name, signature, own, tuple(inputs))
    return found


def _matched(ours: Iterable[_Module], theirs: Iterable[_Module]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The clear pairs, a name of the candidate's -> the reference's; and what is ambiguous -> all that it may be."""
    groups: dict[Signature, tuple[list[_Module], list[_Module]]] = defaultdict(lambda: ([], []))
    for side, modules in enumerate((ours, theirs)):
        for module in modules:
            groups[module.signature][side].append(module)
    pairs: dict[str, str] = {}
    ambiguous: dict[str, list[str]] = {}
    for signature, (first, second) in groups.items():
        if not (signature and first and second):
            continue
        apart = _distances([m.outputs for m in first], [m.outputs for m in second])
        of_ours = [_nearest(apart[i], module, second) for i, module in enumerate(first)]
        for j, module in enumerate(second):
            near = _nearest(apart[:, j], module, first)
            if len(near) == 1 and of_ours[near[0]] == [j]:
                pairs[module.name] = first[near[0]].name
            elif near:
                ambiguous[module.name] = [first[i].name for i in near]
    return pairs, ambiguous


def _nearest(line: np.ndarray, module: _Module, others: Sequence[_Module]) -> list[int]:
    """The clearly nearest alone, or all that rival the nearest; empty where even that is unrelated.

    Args:
        line: distances of the outputs; the inputs' are asked for only where these do not decide.
    """
    best = int(np.argmin(line))
    related = bool(line[best] < CLEARLY * UNRELATED)
    if related:
        near = [best, *(int(i) for i in np.flatnonzero(line * CLEARLY <= line[best]) if i != best)]
    else:  # a module that computes something else is known by what it is given, which few share
        near = list(range(len(line))) if len(line) <= MOST_BY_INPUTS else []
    if len(near) > related:
        told = [_input_distance(module, others[i]) for i in near]
        first, *rest = sorted(told)
        if first < CLEARLY * min([UNRELATED, *rest]):
            return [near[told.index(first)]]
    return near if related else []


def _vector(records: Sequence[Record]) -> np.ndarray:
    """The total counters of all records, each scaled to one."""
    found = []
    for record in records:
        assert record.sketch is not None
        whole = of_the_whole(record.sketch, Geometry(*record.frame))
        wide = np.nan_to_num(whole, nan=0.0, posinf=0.0, neginf=0.0)
        length = norm(wide)
        # Also the size counts: a tensor and its multiple are not the same.
        found.append(np.append(wide / (length or 1.0), math.log(length) if length else 0.0))
    return np.concatenate(found)


def _distances(ours: Sequence[Sequence[Record]], theirs: Sequence[Sequence[Record]]) -> np.ndarray:
    """Root mean square over the records of their relative distances, [ours, theirs]."""
    a, b = np.stack([_vector(r) for r in ours]), np.stack([_vector(r) for r in theirs])
    squares = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1)[None] - 2 * (a @ b.T)
    return np.sqrt(np.maximum(squares, 0.0) / len(ours[0]))


def _input_distance(ours: _Module, theirs: _Module) -> float:
    """Root mean square of each input's distance to the nearest input of the same shape; inf where one has none."""
    return max(_one_way(ours.inputs, theirs.inputs), _one_way(theirs.inputs, ours.inputs))


def _one_way(from_: Sequence[Record], to: Sequence[Record]) -> float:
    same = [[[r] for r in to if _place(r) == _place(record)] for record in from_]
    if not same or not all(same):
        return math.inf
    nearest = [_distances([[record]], others).min() for record, others in zip(from_, same, strict=True)]
    return float(np.sqrt(np.mean(np.square(nearest))))


def _place(record: Record) -> Signature:
    """What inputs must share to be matched: the part of the rows too, but not the argument's name."""
    return (record.key.branch, record.key.call, record.rows, record.frame, record.key.port.partition("@")[2])


_NUMBER = re.compile(r"\d+")


def _generalised(pairs: Mapping[str, str], names: Collection[str]) -> tuple[Rule, ...]:
    """Rules for the pairs: one for all that differ in their numbers alone, if it contradicts no pair."""
    rules: dict[str, Rule] = {}
    for theirs, ours in pairs.items():
        rule = _pattern(theirs, ours)
        if rule.pattern.pattern in rules:
            continue
        collides = any(rule.apply(name) in names for name in names)  # a name that the candidate has already
        if collides or any(rule.apply(name) not in (None, target) for name, target in pairs.items()):
            rule = Rule(re.compile(re.escape(theirs)), _escaped(ours))
        rules[rule.pattern.pattern] = rule
    return tuple(rules.values())


def _pattern(theirs: str, ours: str) -> Rule:
    """The pair's rule, with its numbers as groups where both sides have the same."""
    numbers = _NUMBER.findall(theirs)
    if numbers != _NUMBER.findall(ours) or len(numbers) > 4:
        return Rule(re.compile(re.escape(theirs)), _escaped(ours))
    source = r"(\d+)".join(re.escape(part) for part in _NUMBER.split(theirs))
    parts = [_escaped(part) for part in _NUMBER.split(ours)]
    target = parts[0] + "".join(f"\\g<{i}>{part}" for i, part in enumerate(parts[1:], 1))
    return Rule(re.compile(source), target)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\")


def _ports(ours: Mapping[str, _Module], theirs: Mapping[str, _Module], rename: Rename) -> tuple[Rule, ...]:
    """Rules for inputs that mapped modules call differently."""
    found: dict[str, str] = {}
    for name, module in theirs.items():
        target = rename.module(name)
        if target == name or target not in ours:
            continue
        pairs, _ = _matched(_inputs_alone(ours[target], module), _inputs_alone(module, ours[target]))
        found |= {f"{target}:{their}": f"{target}:{our}" for their, our in pairs.items()}
    return _generalised(found, found)


def _inputs_alone(module: _Module, other: _Module) -> Iterator[_Module]:
    """Inputs whose name the other module has not, each as a module of one output, to be matched as modules are."""
    names = {r.key.port for r in other.inputs}
    return (_Module(r.key.port.partition("@")[0], _place(r), (r,)) for r in module.inputs if r.key.port not in names)
