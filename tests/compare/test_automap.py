"""Mapping modules by what they compute: right if it is clear, silent if it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest

from parity.compare.automap import propose
from parity.golden.rename import Renamer, decode_rename
from parity.records import Record, StepRecords
from tests.support.made import moved, noise, tensor

NAMES = {"blocks": "layers", "attn": "mixer", "in.hidden_states": "in.x", "norm_out": "final"}
SHUFFLED = {"blocks.0": "first.2", "blocks.1": "first.0", "blocks.2": "first.1"}
X, Y, Z = noise(1), noise(2), noise(3)


def own(site: str, names: Mapping[str, str]) -> str:
    for ours, theirs in names.items():
        site = site.replace(ours, theirs)
    return site


def model(far: float = 2.0, blocks: int = 4, names: Mapping[str, str] = NAMES) -> tuple[StepRecords, StepRecords]:
    """A chain of blocks with attention in them, on both sides, `far` floors apart."""
    sites, x = [], noise(0)
    for i in range(blocks):
        sites += [(f"blocks.{i}:in.hidden_states", x), (f"blocks.{i}:in.temb", noise(1, (1, 40)))]
        sites += [
            (f"blocks.{i}.attn:in.hidden_states", x * 0.5 + noise(50 + i)),
            (f"blocks.{i}.attn:out", noise(100 + i)),
        ]
        x = x + noise(200 + i)
        sites.append((f"blocks.{i}:out", x))
    sites += [("norm_out:in.x", x), ("norm_out:out", noise(300))]
    theirs = [tensor(own(site, names), moved(value, far, seed=n + 1)) for n, (site, value) in enumerate(sites)]
    return StepRecords(0, tuple(tensor(*site) for site in sites)), StepRecords(0, tuple(theirs))


def of(**tensors: np.ndarray) -> StepRecords:
    return StepRecords(0, tuple(tensor(f"{name}:out", x) for name, x in tensors.items()))


def renamed(reference: StepRecords, candidate: StepRecords) -> list[str]:
    rename = decode_rename(json.loads(propose(reference, candidate).rename.dumps()))  # as it would be saved and read
    return [r.key.site for r in Renamer(rename).step(candidate).records]


def mapped(reference: StepRecords, candidate: StepRecords) -> dict[str, str]:
    """The candidate's modules that are mapped -> the reference's."""
    rename = propose(reference, candidate).rename
    return {name: own for name in {r.key.module for r in candidate.records} if (own := rename.module(name)) != name}


@pytest.mark.parametrize(
    ("far", "names"),
    [(0.0, NAMES), (2.0, NAMES), (1e4, NAMES), (2.0, SHUFFLED), (2.0, {"norm_out": "final"}), (2.0, {})],
)
def test_modules_and_ports_find_their_names(far: float, names: dict[str, str]) -> None:
    reference, candidate = model(far, 3, names)
    assert renamed(reference, candidate) == [r.key.site for r in reference.records]
    assert bool(propose(reference, candidate).rename) is bool(names)


def test_a_module_that_gives_its_output_beside_none_is_found() -> None:
    """As a block or a layer that a scan calls."""
    theirs = StepRecords(0, (tensor("c:out.0", X), tensor("d:out.0", Y)))
    assert mapped(of(a=X, b=Y), theirs) == {"c": "a", "d": "b"}


def test_a_container_is_distinguished_from_its_last_child_by_its_inputs() -> None:
    sites = {"net:in.x": X, "net.0:in.x": X, "net.0:out": Y, "net.1:in.x": Y, "net.1:out": Z, "net:out": Z}
    ours, theirs = (
        StepRecords(0, tuple(tensor(own(s, names), x) for s, x in sites.items())) for names in ({}, {"net": "ff"})
    )
    assert mapped(ours, theirs) == {"ff": "net", "ff.0": "net.0", "ff.1": "net.1"}


@pytest.mark.parametrize(
    ("reference", "candidate", "pairs", "note"),
    [
        (of(a=X, b=X), of(c=X), {}, "'c' may be one of 'a', 'b'"),
        (of(a=X), of(b=Y), {}, "no module of the reference computes what these 1 do: 'b'"),
        (of(a=X, b=8 * X), of(c=8 * X, d=X), {"c": "b", "d": "a"}, ""),  # a multiple is not the same
    ],
)
def test_only_what_is_clear_is_mapped(
    reference: StepRecords, candidate: StepRecords, pairs: dict[str, str], note: str
) -> None:
    assert mapped(reference, candidate) == pairs
    assert any(note in text for text in propose(reference, candidate).notes)


@pytest.mark.parametrize(
    "other",
    [tensor("b:out", X.reshape(1, 48, 80)), tensor("b:out", X, branch="uncond"), tensor("b:out", X, rows="text")],
)
def test_another_shape_branch_call_or_port_is_never_the_same(other: Record) -> None:
    assert not propose(of(a=X), StepRecords(0, (other,))).rename
