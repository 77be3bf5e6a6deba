"""`parity models`, `doctor` and `cache`: what can be run, what is here, and forgetting what is kept."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path

import pytest

import parity.commands.doctor as doctor
from parity.commands.doctor import Extra, Findings, Probe, check_extra, probe_all
from parity.models.registry import DEFAULT_MODEL, tiny_names
from parity.settings import SETTINGS, parse
from tests.support.cli import cli


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path / "cache"))
    for name in ("jax", "models", "users"):
        (tmp_path / "cache" / name / "below").mkdir(parents=True)
        (tmp_path / "cache" / name / "below" / "file").write_bytes(bytes(1000))
    return tmp_path / "cache"


def test_models_lists_models_and_settings_whose_values_are_taken(cache: Path) -> None:
    (cache / "models" / f"{DEFAULT_MODEL}-v10").mkdir()
    found = cli("models", "--json", code=0).json
    assert [m["model"] for m in found["models"]] == list(tiny_names())
    assert [m["model"] for m in found["models"] if m["default"]] == [DEFAULT_MODEL]
    assert [m["model"] for m in found["models"] if m["cached"]] == [DEFAULT_MODEL]
    assert [s["setting"] for s in found["settings"]] == [setting.name for setting in SETTINGS]
    for setting in found["settings"]:
        for backend, values in setting["takes"].items():
            blocks = "block" in setting["setting"] and backend == "torchax"  # of splash, which is not the default
            for value in values if isinstance(values, list) else ():
                parse(backend, [*["attention.kernel=splash"] * blocks, f"{setting['setting']}={value}"])
    assert "setting refiner.mask: default exact; values exact, none; " in cli("models", code=0).out


def test_cache_shows_sizes_and_deletes_its_own_parts_alone(cache: Path, tmp_path: Path) -> None:
    sizes = cli("cache", "--json", code=0).json["bytes"]
    assert {name: size for name, size in sizes.items() if size} == {"jax": 1000, "models": 1000}
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (cache / "known_faults").symlink_to(tmp_path / "precious")
    cli("cache", "--clear", "jax", code=0)
    assert {path.name for path in cache.iterdir()} == {"models", "users", "known_faults"}
    cli("cache", "--clear", "all", code=0)
    assert {path.name for path in cache.iterdir()} == {"users"}
    assert (tmp_path / "precious" / "file").exists()


REQUIRES = {
    "tpu-parity": [
        "numpy>=2.0",
        'torch==2.13.0; extra == "torch"',
        'diffusers==0.42.1; extra == "torch"',
        'tpu-parity[torch]; extra == "torchax"',
        'torchax==0.0.14.dev20261026; extra == "torchax"',
        'tpu-parity[torchax]; extra == "tpu"',
        'jax[tpu]==0.10.2; extra == "tpu"',
    ],
    "jax": ["ml-dtypes", 'libtpu==0.0.42.*; extra == "tpu"', 'other; extra == "cuda" and sys_platform == "linux"'],
}
COMPLETE = Findings(
    {"torch": "2.13.0+cpu", "libtpu": None},
    tuple(Extra(name) for name in doctor.EXTRAS),
    {"torch": Probe(True), "jax": Probe(True, ("cpu (cpu)",) * 8), "torchax": Probe(True)},
    2, "cache", 1_500_000,
)  # fmt: skip


def test_doctor_says_what_an_extra_lacks_and_how_to_add_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"tpu-parity": "0.1.0", "torch": "2.13.0+cpu", "diffusers": "0.41.0", "jax": "0.10.2"}

    def version(package: str) -> str:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", REQUIRES.get)
    found = replace(COMPLETE, extras=tuple(map(check_extra, ("torch", "tpu"))))
    monkeypatch.setattr(doctor, "examine", lambda: found)
    text = cli("doctor", code=0).out
    assert "extra torch: incomplete: diffusers is 0.41.0, wanted ==0.42.1; add it with: pip install " in text
    assert "lacks torchax, libtpu" in text
    assert "jax devices: 8 x cpu (cpu)" in text
    assert cli("doctor", "--json", code=0).json["extras"][1]["lacks"] == ["torchax", "libtpu"]
    cli("doctor", "--strict", code=1)
    monkeypatch.setattr(doctor, "examine", lambda: COMPLETE)
    cli("doctor", "--strict", code=0)


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
