"""The catalogue is whole: a setting that lacks a part, or that no code applies, fails here by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import parity
from parity.errors import UsageError
from parity.settings import BITS, SETTINGS, Backend, changed_by, meaningless, parse, remedy, sentence
from parity.settings.setting import Capability, Input, Place

ROOT = Path(parity.__file__).parent
BACKENDS: tuple[Backend, ...] = ("torch", "torchax")


def test_every_setting_is_applied_reported_and_told() -> None:
    code = (path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path.parent != ROOT / "settings")
    applied = {name for text in code for name in re.findall(r'\bmark\(\s*"([^"]+)"\s*\)', text)}
    assert applied == {setting.name for setting in SETTINGS}
    for setting in SETTINGS:
        for backend in BACKENDS:
            values = setting.tries(backend)
            assert values, setting.name
            taken = setting.takes.get(backend, values)
            needs = setting.needs if backend == "torchax" else ()
            for value in values:
                if value in taken:
                    assert parse(backend, [*needs, f"{setting.name}={value}"]).changed(setting.name)
                else:
                    with pytest.raises(UsageError, match="cannot take"):
                        parse(backend, [f"{setting.name}={value}"])
        assert setting.meaning
        assert remedy(setting.name)
        assert not re.search(r"[{}]", sentence(setting.name, setting.tries("torch")[0])), setting.name
        assert set(get_args(Place)) >= set(setting.places) > set(), setting.name
        rounds = bool(set(setting.values) & set(BITS)) or setting.name == "matmul_precision"
        assert (setting.neutral is not None) == rounds, setting.name


def test_what_a_model_lacks_takes_the_meaning_of_settings() -> None:
    for need in get_args(Capability):
        assert set(meaningless({need: "it has none"}).values()) == {"it has none"}
    found = meaningless({"text mask": "no mask", "attention": "no attention"})
    assert (found["attention.mask"], found["text.reorder"]) == ("no attention", "no mask")
    assert "dtype" not in found


def test_what_changes_least_else_explains_an_input_first() -> None:
    assert changed_by("embeddings") == ("text.byt5_dtype", "dtype")
    assert all(changed_by(what) for what in get_args(Input))
