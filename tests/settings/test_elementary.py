"""The published bounds of TPUs' elementary functions."""

from __future__ import annotations

import pytest

from parity.settings import BY_NAME, paired, parse
from parity.settings.elementary import CHIPS, LIMITS, NO_CHIP, chip_of


def test_every_chip_has_every_function_and_every_bound_is_one() -> None:
    known = {chip: bounds for chip, bounds in CHIPS.items() if chip != NO_CHIP}
    assert len({frozenset(bounds) for bounds in known.values()}) == 1
    assert all(b.absolute + b.relative > 0 for bounds in known.values() for b in bounds.values())
    assert set(LIMITS) <= set(CHIPS["v4"])
    assert CHIPS[NO_CHIP] == {}
    assert set(BY_NAME["tpu"].values) == set(CHIPS)


@pytest.mark.parametrize(
    ("kind", "chip"),
    [("TPU v6 lite", "v6e"), ("TPU v5", "v5p"), ("TPU7x x 8", "tpu7x"), ("cpu", NO_CHIP), ("", NO_CHIP)],
)
def test_a_device_is_known_by_its_kind(kind: str, chip: str) -> None:
    assert chip_of(kind) == chip


def test_the_references_floors_allow_for_the_candidates_chip_unless_they_are_told() -> None:
    ours, theirs = paired(parse("torch", []), parse("torchax", ["tpu=v6e"]))
    assert (ours["tpu"], theirs["tpu"]) == ("v6e", "v6e")
    told, _ = paired(parse("torch", ["tpu=v4"]), parse("torchax", ["tpu=v6e"]))
    assert told["tpu"] == "v4"
    assert paired(parse("torch", []), parse("torchax", []))[0] == parse("torch", [])
