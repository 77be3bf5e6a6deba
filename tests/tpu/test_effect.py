"""Two programs side by side: the units that multiply are the same where what they compute is."""

from __future__ import annotations

import re

from parity.tpu.effect import effect
from parity.tpu.hlo import parse
from tests.tpu.recorded import MODULES, text


def test_a_program_is_itself() -> None:
    plain = parse(text("plain"))
    found = effect(plain, plain, MODULES)
    assert (found.before, found.after, found.same, found.changed) == (2, 2, 2, ())


def test_names_and_places_change_nothing() -> None:
    renamed = re.sub(r"%(\w+)", r"%other_\1", text("plain")).replace("S(1)", "")
    assert effect(parse(text("plain")), parse(renamed), MODULES).same == 2


def test_a_fusion_that_an_observer_entered_is_another() -> None:
    found = effect(parse(text("plain")), parse(text("observed")), MODULES)
    assert (found.before, found.same) == (2, 1)
    assert found.changed == (("blocks.*.up", 1),)


def test_another_precision_is_another_unit() -> None:
    other = text("plain").replace("operand_precision={highest,highest}", "operand_precision={high,high}")
    assert effect(parse(text("plain")), parse(other), MODULES).changed == (("blocks.*.up", 1),)


def test_another_operation_in_the_fusion_is_another_unit() -> None:
    other = text("plain").replace(" maximum(%convolution.4", " minimum(%convolution.4")
    assert effect(parse(text("plain")), parse(other), MODULES).same == 1
