"""A module's one tensor input and output that the two sides name differently, and outputs in another order.

Problem. Flax calls what a Dense takes `inputs`, torch calls what a Linear takes `input`; a block that Flax scans hands
on `(x, None)`, torch's `x`. By name they never meet, so that where an output differs nothing is known of what went in.

How. Of one call of a module, the inputs whose name the other side does not have are looked at. Where each side has one
tensor of them and the two line up, they are paired, under the reference's name. Outputs are where each side has one
tensor in all. Several on a side are not paired, nor are masks, which have forms of their own, nor what the model itself
is given and returns: a port's call may convert both. What is paired so may still be two things: one implementation
applies an activation before a projection, the other in it. So such a pair can only agree (`parity.compare.judge`).

A block of two streams may give them back in another order (text first in diffusers' Flux). Where outputs of one name do
not line up, and each of one side does with exactly one of the other, they are paired so.

Cost. One pass over the keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from parity.compare.metrics import comparable_shapes
from parity.records import LOOP, Key, Record, StepRecords

_Parts = Mapping[str, Record]
"""A port's records by the part of its rows that they hold; the whole's is empty."""
_Side = tuple[Key, bool]
"""A call of a module, and whether its inputs or its outputs."""


def lone_ports(
    reference: Sequence[Record], candidate: Sequence[Record], of: Callable[[str], bool] = lambda module: True
) -> dict[Key, Key]:
    """The candidate's key -> the reference's, of inputs and outputs that each side names by itself.

    Args:
        of: of which modules.
    """
    ours, theirs = (_ports(r for r in side if of(r.key.module)) for side in (reference, candidate))
    mine, other = _alone(ours, theirs), _alone(theirs, ours)
    found: dict[Key, Key] = {}
    for call, a in mine.items():
        b = other.get(call)
        if b is not None and _line_up(ours[a], theirs[b]):
            found |= _renamed(ours[a], theirs[b])
    for a, b in _turned(ours, theirs):
        found |= _renamed(ours[a], theirs[b])
    return found


def _renamed(ours: _Parts, theirs: _Parts) -> dict[Key, Key]:
    return {theirs[part].key: record.key for part, record in ours.items()}


def met(reference: StepRecords, candidate: StepRecords) -> StepRecords:
    """The candidate's step under the keys that it was compared by."""
    names = lone_ports(reference.records, candidate.records)
    return candidate.renamed(lambda key: names.get(key, key)) if names else candidate


def _ports(records: Iterable[Record]) -> dict[Key, dict[str, Record]]:
    """The inputs and outputs of modules inside the model, by their key without a part."""
    found: defaultdict[Key, dict[str, Record]] = defaultdict(dict)
    for record in records:
        if record.key.module not in ("", LOOP):
            bare, _, part = record.key.site.partition("@")
            found[replace(record.key, site=bare)][part] = record
    return found


def _alone(ports: Mapping[Key, _Parts], others: Mapping[Key, _Parts]) -> dict[_Side, Key]:
    """The one port of a tensor whose name the other side does not have; of outputs, beside which there is no other."""
    found: defaultdict[_Side, list[Key]] = defaultdict(list)
    for port, parts in ports.items():
        named = port.is_input and port in others
        if not named and any(r.kind == "tensor" for r in parts.values()):
            found[replace(port, site=port.module), port.is_input].append(port)
    lone = {side: alone[0] for side, alone in found.items() if len(alone) == 1}
    return {side: port for side, port in lone.items() if port not in others and "mask" not in port.port}


def _turned(ours: Mapping[Key, _Parts], theirs: Mapping[Key, _Parts]) -> Iterator[tuple[Key, Key]]:
    """Outputs of one call that only another order lines up, each with the one that it can only be."""
    mine, others = _outputs(ours), _outputs(theirs)
    for call, ports in mine.items():
        if set(others.get(call, ())) != set(ports) or all(_line_up(ours[p], theirs[p]) for p in ports):
            continue
        fits = {a: [b for b in ports if _line_up(ours[a], theirs[b])] for a in ports}
        if all(len(found) == 1 for found in fits.values()) and len({b for (b,) in fits.values()}) == len(ports):
            yield from ((a, b) for a, (b,) in fits.items() if a != b)


def _outputs(ports: Mapping[Key, _Parts]) -> dict[Key, list[Key]]:
    """The tensors that each call gives back, by its module's key."""
    found: defaultdict[Key, list[Key]] = defaultdict(list)
    for port, parts in ports.items():
        if not port.is_input and any(r.kind == "tensor" for r in parts.values()):
            found[replace(port, site=port.module)].append(port)
    return found


def _line_up(a: _Parts, b: _Parts) -> bool:
    return a.keys() == b.keys() and all(
        x.kind == b[part].kind == "tensor" and comparable_shapes(x, b[part]) for part, x in a.items()
    )
