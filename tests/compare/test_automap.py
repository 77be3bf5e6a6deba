"""Mapping modules by what they compute: right where it is clear, silent where it is not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from parity.compare.automap import propose
from parity.golden import Record, StepRecords
from parity.golden.rename import Renamer, decode_rename
from tests.support.made import moved, noise, none, tensor

NAMES = {"blocks": "layers", "attn": "mixer", "in.hidden_states": "in.x", "norm_out": "final"}


def own(site: str, names: Mapping[str, str] = NAMES) -> str:
    for ours, theirs in names.items():
        site = site.replace(ours, theirs)
    return site


def model(far: float = 2.0, blocks: int = 4, names: Mapping[str, str] = NAMES) -> tuple[StepRecords, StepRecords]:
    """A chain of blocks with attention in them, on both sides, `far` floors apart."""
    ours: list[Record] = []
    theirs: list[Record] = []

    def both(site: str, x: np.ndarray) -> None:
        ours.append(tensor(site, x))
        theirs.append(tensor(own(site, names), moved(x, far, seed=len(ours))))

    x, temb = noise(0), noise(1, (1, 40))
    for i in range(blocks):
        both(f"blocks.{i}:in.hidden_states", x)
        both(f"blocks.{i}:in.temb", temb)
        both(f"blocks.{i}.attn:in.hidden_states", x * 0.5 + noise(50 + i))
        both(f"blocks.{i}.attn:out", noise(100 + i))
        x = x + noise(200 + i)
        both(f"blocks.{i}:out", x)
    both("norm_out:in.x", x)
    both("norm_out:out", noise(300))
    return StepRecords(0, tuple(ours)), StepRecords(0, tuple(theirs))


def renamed(reference: StepRecords, candidate: StepRecords) -> list[str]:
    rename = decode_rename(propose(reference, candidate).rename.document())  # as it would be saved and read
    return [r.key.site for r in Renamer(rename).step(candidate).records]


@pytest.mark.parametrize("far", [0.0, 2.0, 1e4])
def test_modules_and_ports_find_their_names(far: float) -> None:
    reference, candidate = model(far)
    assert renamed(reference, candidate) == [r.key.site for r in reference.records]


def test_numbered_modules_become_one_rule() -> None:
    found = propose(*model())
    assert [(r.pattern.pattern, r.target) for r in found.rename.modules] == [
        (r"layers\.(\d+)", r"blocks.\g<1>"),
        (r"layers\.(\d+)\.mixer", r"blocks.\g<1>.attn"),
        ("final", "norm_out"),
    ]
    assert found.pairs["layers.2.mixer"] == "blocks.2.attn"
    assert found.notes == ("--map auto: 9 of 9 modules matched by what they compute, 3 rules",)


def test_names_that_agree_are_never_mapped() -> None:
    reference, candidate = model(names={})
    found = propose(reference, candidate)
    assert not found.rename
    assert found.notes == ()


def test_a_module_both_have_keeps_its_name_even_where_another_is_nearer() -> None:
    reference, candidate = model(names={"norm_out": "final"})
    assert set(propose(reference, candidate).pairs) == {"final"}


def test_numbers_that_do_not_agree_are_mapped_one_by_one() -> None:
    reference, candidate = model(blocks=3, names={"blocks.0": "first.2", "blocks.1": "first.0", "blocks.2": "first.1"})
    assert renamed(reference, candidate) == [r.key.site for r in reference.records]
    assert all("(" not in rule.pattern.pattern for rule in propose(reference, candidate).rename.modules)


def test_a_diverging_module_is_known_by_its_inputs() -> None:
    reference, candidate = model()
    records = tuple(
        tensor(r.key.site, noise(900)) if r.key.site == "layers.1.mixer:out" else r for r in candidate.records
    )
    assert propose(reference, StepRecords(0, records)).pairs["layers.1.mixer"] == "blocks.1.attn"


def test_what_two_modules_compute_alike_is_ambiguous_and_said() -> None:
    x = noise(1)
    reference = StepRecords(0, (tensor("a:out", x), tensor("b:out", x)))
    candidate = StepRecords(0, (tensor("c:out", x),))
    found = propose(reference, candidate)
    assert not found.rename
    assert "'c' may be 'a' or 'b': not mapped" in found.notes[1]


def test_inputs_tell_a_container_from_its_last_child() -> None:
    x, y, z = noise(1), noise(2), noise(3)
    sites = [("net:in.x", x), ("net.0:in.x", x), ("net.0:out", y), ("net.1:in.x", y), ("net.1:out", z), ("net:out", z)]
    reference = StepRecords(0, tuple(tensor(site, value) for site, value in sites))
    candidate = StepRecords(0, tuple(tensor(own(site, {"net": "ff"}), value) for site, value in sites))
    assert propose(reference, candidate).pairs == {"ff": "net", "ff.0": "net.0", "ff.1": "net.1"}


def test_nothing_near_is_not_mapped() -> None:
    found = propose(StepRecords(0, (tensor("a:out", noise(1)),)), StepRecords(0, (tensor("b:out", noise(2)),)))
    assert not found.rename
    assert "no module of the reference computes what 'b' does" in found.notes[1]


def test_another_shape_branch_or_call_is_never_the_same() -> None:
    x = noise(1)
    reference = StepRecords(0, (tensor("a:out", x),))
    for other in (
        tensor("b:out", x.reshape(1, 48, 80)),
        tensor("b:out", x, branch="uncond"),
        tensor("b:out", x, call=1),
        tensor("b:out.0", x),
        tensor("b:out", x, rows="text"),
        tensor("b:in.x", x),
    ):
        assert not propose(reference, StepRecords(0, (other,))).rename, other.key


def test_a_multiple_is_not_the_same() -> None:
    x = noise(1)
    reference = StepRecords(0, (tensor("a:out", x), tensor("b:out", 8 * x)))
    candidate = StepRecords(0, (tensor("c:out", 8 * x), tensor("d:out", x)))
    assert propose(reference, candidate).pairs == {"c": "b", "d": "a"}


def test_nan_empty_and_missing_tensors_are_no_obstacle() -> None:
    bad = np.full((1, 96, 40), np.nan, np.float32)
    reference = StepRecords(0, (tensor("a:out", bad), tensor("e:out", np.zeros((0, 4), np.float32)), none("f:out")))
    candidate = StepRecords(0, (tensor("b:out", bad), tensor("g:out", np.zeros((0, 4), np.float32)), none("h:out")))
    propose(reference, candidate)
    propose(reference, StepRecords(0, ()))
    propose(StepRecords(0, ()), candidate)


def test_two_thousand_modules_are_matched_in_seconds() -> None:
    import time

    reference = StepRecords(0, tuple(tensor(f"a.{i}:out", noise(i, (8, 512))) for i in range(2000)))
    candidate = StepRecords(0, tuple(tensor(f"b.{i}:out", noise(i, (8, 512))) for i in range(2000)))
    start = time.perf_counter()
    found = propose(reference, candidate)
    assert time.perf_counter() - start < 30
    assert len(found.rename.modules) == 1
