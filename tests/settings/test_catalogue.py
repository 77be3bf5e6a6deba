"""The catalogue is whole: a setting that lacks a part, or that no code applies, fails here by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

import parity
from parity.errors import UsageError
from parity.settings import BITS, SETTINGS, Setting, changed_by, meaningless, parse, remedy, sentence
from parity.settings.kinds import Enumerated
from parity.settings.setting import Advice, Capability, Input, Place

BACKENDS = ("torch", "torchax")
ROOT = Path(parity.__file__).parent

ALL = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)


def applied() -> set[str]:
    """The settings whose code reports that it was reached."""
    code = (path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path.parent != ROOT / "settings")
    return {name for text in code for name in re.findall(r'\bmark\(\s*"([^"]+)"\s*\)', text)}


APPLIED = applied()


@ALL
def test_its_code_reports_that_it_was_reached(setting: Setting) -> None:
    assert setting.name in APPLIED


def test_every_report_is_of_a_setting() -> None:
    assert {setting.name for setting in SETTINGS} >= APPLIED


@ALL
def test_it_can_be_tried(setting: Setting) -> None:
    tries = {backend: setting.tries(backend) for backend in BACKENDS}  # type: ignore[arg-type]
    assert all(tries.values())
    for backend, values in tries.items():
        taken = setting.takes.get(backend, values)  # type: ignore[call-overload]
        for value in values:
            needs = setting.needs if backend == "torchax" else ()
            if value in taken:
                assert parse(backend, [*needs, f"{setting.name}={value}"]).changed(setting.name)  # type: ignore[arg-type]
            else:
                with pytest.raises(UsageError, match="cannot take"):
                    parse(backend, [f"{setting.name}={value}"])  # type: ignore[arg-type]


@ALL
def test_its_words_are_there(setting: Setting) -> None:
    assert setting.meaning
    assert not setting.meaning.endswith(".")
    (value, *_) = setting.tries("torch")
    assert not re.search(r"[{}]", sentence(setting.name, value))
    assert remedy(setting.name)


@ALL
def test_it_applies_somewhere(setting: Setting) -> None:
    assert setting.places
    assert set(setting.places) <= set(get_args(Place))


@ALL
def test_a_setting_that_only_rounds_rounds_least_at_its_neutral_value(setting: Setting) -> None:
    rounds = set(setting.values) & set(BITS) or setting.name == "matmul_precision"
    assert (setting.neutral is not None) == bool(rounds)
    assert setting.neutral in (None, *map(setting.read, setting.values))


@pytest.mark.parametrize("missing", ["meaning", "kind", "default", "advice"])
def test_an_entry_that_forgets_a_part_is_an_error(missing: str) -> None:
    parts: dict[str, Any] = {
        "name": "attention.softcap",
        "meaning": "cap of the logits",
        "kind": Enumerated(("off", "50")),
        "default": "off",
        "advice": Advice("logits are capped at {value}", "cap them as the reference does"),
    }
    assert Setting(**parts).tries("torch") == ("50",)
    del parts[missing]
    with pytest.raises(TypeError, match=missing):
        Setting(**parts)


@pytest.mark.parametrize("need", get_args(Capability))
def test_what_a_model_lacks_takes_the_meaning_of_a_setting(need: Capability) -> None:
    assert set(meaningless({need: "it has none"}).values()) == {"it has none"}


def test_a_setting_with_several_needs_has_the_first_reason() -> None:
    found = meaningless({"text mask": "no mask", "attention": "no attention"})
    assert found["attention.mask"] == "no attention"
    assert found["text.reorder"] == "no mask"
    assert "dtype" not in found


def test_what_changes_least_else_explains_an_input_first() -> None:
    assert changed_by("embeddings") == ("text.byt5_dtype", "dtype")
    assert changed_by("weights") == ("dtype",)
    assert all(changed_by(what) for what in get_args(Input))
