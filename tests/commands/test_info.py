"""`parity info`: what is here, what can be run, and what is kept. Goldens: `tests/golden`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest

import parity.commands.machine as machine
from parity.commands.machine import Findings, Probe, probe_all, wrong_with
from parity.models.registry import DEFAULT_MODEL, tiny_names
from parity.settings import SETTINGS
from tests.support.cli import cli


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path / "cache"))
    for name in ("jax", "models", "users"):
        (tmp_path / "cache" / name / "below").mkdir(parents=True)
        (tmp_path / "cache" / name / "below" / "file").write_bytes(bytes(1000))


def test_models_and_settings_are_listed() -> None:
    models = cli("info", "models", "--format", "json", code=0).json["models"]
    assert [m["model"] for m in models if m["default"] == "yes"] == [DEFAULT_MODEL]
    assert [m["model"] for m in models][: len(tiny_names())] == list(tiny_names())
    found = cli("info", "settings", "--format", "json", code=0).json["settings"]
    assert [s["setting"] for s in found] == [setting.name for setting in SETTINGS]
    assert "setting refiner.mask: default exact; values exact, none; " in cli("info", "settings", code=0).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("models --verify", "looks into a golden: parity info GOLDEN"),
        ("--verify", "looks into a golden: parity info GOLDEN"),
        ("setings", "'setings' is neither a topic nor a golden; perhaps parity info settings"),
        ("elsewhere", "there is no golden here"),
        ("file://settings", "there is no golden here"),
    ],
)
def test_wrong_usage(words: str, said: str) -> None:
    assert said in cli("info", *words.split(), code=2).said


def test_cache_shows_sizes() -> None:
    sizes = cli("info", "cache", "--format", "json", code=0).json["bytes"]
    assert {name: size for name, size in sizes.items() if size} == {"jax": 1000, "models": 1000}


REQUIRES = {
    "tpu-parity": [
        "numpy>=2.0",
        'torch>=2.7; extra == "torch"',
        'diffusers>=0.36; extra == "torch"',
        'tpu-parity[torch]; extra == "torchax"',
        'torchax>=0.0.7; extra == "torchax"',
        'tpu-parity[torchax]; extra == "tpu"',
        'jax[tpu]>=0.7; extra == "tpu"',
    ],
    "jax": ["ml-dtypes", 'libtpu==0.0.42.*; extra == "tpu"', 'other; extra == "cuda" and sys_platform == "linux"'],
}
COMPLETE = Findings(
    {"torch": "2.13.0+cpu", "libtpu": None},
    dict.fromkeys(machine.EXTRAS, ()),
    {"torch": Probe(True), "jax": Probe(True, ("cpu (cpu)",) * 8), "torchax": Probe(True)},
    2,
)  # fmt: skip


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`installed(torch="2.13.0")`: what is installed, as the metadata tells."""

    def install(**versions: str) -> None:
        def version(package: str) -> str:
            if package not in (found := {"tpu-parity": "0.1.0", **versions}):
                raise importlib.metadata.PackageNotFoundError(package)
            return found[package]

        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(importlib.metadata, "requires", REQUIRES.get)
        extras = {extra: tuple(wrong_with(extra)) for extra in ("torch", "tpu")}
        found = Findings(COMPLETE.versions, extras, COMPLETE.probes, 2)
        monkeypatch.setattr(machine, "examine", lambda: found)

    return install


def test_it_says_what_an_extra_lacks_and_how_to_add_it(installed: Callable[..., None]) -> None:
    installed(torch="2.13.0+cpu", diffusers="0.35.0", jax="0.10.2")
    text = cli("info", code=0).out
    assert "extra torch: incomplete: diffusers is 0.35.0, wanted >=0.36; add it with: pip install " in text
    assert "lacks torchax, libtpu" in text
    assert "jax devices: 8 x cpu (cpu)" in text
    assert cli("info", "--format", "json", code=0).json["extras"]["tpu"][0] == "lacks torchax, libtpu"


def test_what_is_complete_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "examine", lambda: COMPLETE)
    assert cli("info", "--format", "json", code=0).json["can_run"]
    assert "complete: `parity run` has all it needs" in cli("info", code=0).out


def test_an_import_that_breaks_breaks_nothing_here() -> None:
    programs = {
        "good": "print('noise'); print('[\"a\"]')",
        "broken": "raise ImportError('libfoo.so: not found')",
        "crash": "import os; os._exit(3)",
        "hanging": "import time; time.sleep(60)",
    }
    assert probe_all(programs, limit_s=3.0) == {
        "good": Probe(True, ("a",)),
        "broken": Probe(False, error="ImportError: libfoo.so: not found"),
        "crash": Probe(False, error="ended with exit code 3"),
        "hanging": Probe(False, error="no answer within 3 s"),
    }
