"""A port as a family: what it takes over from the base family, and what it leaves at `Family`'s default."""

from __future__ import annotations

from dataclasses import fields

from parity.models.family import Family
from parity.paths.port.ported import Ported

DEFAULTS = {"of", "recipe", "pipeline_arguments", "static_arguments"}


def test_every_member_of_a_family_is_decided_on() -> None:
    members = {name for name in vars(Family) if not name.startswith("_")}
    assert members - vars(Ported).keys() - {field.name for field in fields(Ported)} == DEFAULTS
