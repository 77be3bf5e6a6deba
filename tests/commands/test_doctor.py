"""`parity doctor`: pins read from metadata, and imports that break break nothing here."""

from __future__ import annotations

import importlib.metadata
import json
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import parity.commands.doctor as doctor_module
from parity.cli import app
from parity.commands.doctor import (
    EXTRAS,
    Disagreement,
    Extra,
    Findings,
    Probe,
    Requirement,
    check_extra,
    examine,
    installed,
    needed,
    parse_requirement,
    probe_all,
    satisfies,
)

EXTRAS_WRITTEN = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
METADATA = {
    "tpu-parity": [
        "numpy>=2.0",
        'torch==2.13.0; extra == "torch"',
        'diffusers==0.42.1; extra == "torch"',
        'tpu-parity[torch]; extra == "torchax"',
        'torchax==0.0.14.dev20261026; extra == "torchax"',
        'tpu-parity[torchax]; extra == "tpu"',
        'jax[tpu]==0.10.2; extra == "tpu"',
        'jinja2>=3.1; extra == "report"',
    ],
    "jax": ["ml-dtypes", 'libtpu==0.0.42.*; extra == "tpu"', 'other; extra == "cuda" and sys_platform == "linux"'],
}
VERSIONS = {"tpu-parity": "0.1.0", "torch": "2.13.0+cpu", "diffusers": "0.41.0", "jax": "0.10.2"}
COMPLETE = Findings(
    {"tpu-parity": "0.1.0", "torch": "2.13.0+cpu", "libtpu": None},
    tuple(Extra(name) for name in EXTRAS),
    {"torch": Probe(True), "jax": Probe(True, ("cpu (cpu)",) * 8), "torchax": Probe(True)},
    2,
    "cache",
    1_500_000,
)
BROKEN = replace(
    COMPLETE,
    extras=(
        COMPLETE.extras[0],
        Extra("torchax", ("torchax",), (Disagreement("jax", "0.9.0", "==0.10.2"),)),
        *COMPLETE.extras[2:],
    ),
    probes={**COMPLETE.probes, "torchax": Probe(False, error="ModuleNotFoundError: No module named 'torchax'")},
)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with the distributions of VERSIONS."""
    versions = dict(VERSIONS)

    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", METADATA.get)
    return versions


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Callable[[Findings], None]:
    return lambda found: monkeypatch.setattr(doctor_module, "examine", lambda: found)


def test_an_extra_is_followed_into_those_it_names(metadata: Mapping[str, str]) -> None:
    assert list(needed("tpu")) == [
        Requirement("torch", (), "==2.13.0"),
        Requirement("diffusers", (), "==0.42.1"),
        Requirement("torchax", (), "==0.0.14.dev20261026"),
        Requirement("jax", ("tpu",), "==0.10.2"),
        Requirement("libtpu"),
    ]


def test_what_an_extra_lacks_and_where_it_disagrees(metadata: Mapping[str, str]) -> None:
    diffusers = Disagreement("diffusers", "0.41.0", "==0.42.1")
    assert check_extra("torch") == Extra("torch", (), (diffusers,))
    assert check_extra("torchax").lacks == ("torchax",)
    assert check_extra("tpu").lacks == ("torchax", "libtpu")
    assert check_extra("report").lacks == ("jinja2",)
    assert not check_extra("report").complete


def test_an_extra_in_the_pinned_versions_is_complete(metadata: dict[str, str]) -> None:
    metadata.update({"diffusers": "0.42.1", "torchax": "0.0.14.dev20261026"})
    assert check_extra("torch").complete
    assert check_extra("torchax").complete


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13", "==2.13.0", True),
        ("2.13.1", "==2.13.0", False),
        ("0.0.14.dev20261026", "==0.0.14.dev20261026", True),
        ("0.0.14.dev20261027", "==0.0.14.dev20261026", False),
        ("0.0.14", "==0.0.14.dev20261026", False),
        ("2026.10.1", ">=2026.9", True),
        ("9.2.0", ">=10", False),
        ("10", ">10.0", False),
        ("1.5", ">=1.0, <1.5", False),
        ("1.4", ">=1.0,<1.5", True),
        ("1.4", "!=1.4", False),
        ("anything", "", True),
    ],
)
def test_versions(version: str, wanted: str, expected: bool) -> None:
    assert satisfies(version, wanted) is expected


def test_a_version_in_an_unknown_form_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="~=1"):
        satisfies("1.0", "~=1.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("numpy>=2.0", (Requirement("numpy", (), ">=2.0"), None)),
        ('moto[server,s3]>=5.0; extra == "test"', (Requirement("moto", ("s3", "server"), ">=5.0"), "test")),
        ("botocore (<1.44.0,>=1.43) ; extra == 'crt'", (Requirement("botocore", (), "<1.44.0,>=1.43"), "crt")),
        ("a; python_version < '3'", (Requirement("a"), "?")),
        ("a; extra == 'x' and python_version < '3'", (Requirement("a"), "?")),
    ],
)
def test_requirements(text: str, expected: tuple[Requirement, str | None]) -> None:
    assert parse_requirement(text) == expected


def test_every_extra_and_every_pin_of_the_project_is_understood() -> None:
    assert set(EXTRAS) == set(EXTRAS_WRITTEN) - {"docs", "test", "older"}
    for extra, texts in EXTRAS_WRITTEN.items():
        for text in texts:
            requirement, asked_by = parse_requirement(f'{text}; extra == "{extra}"')
            assert asked_by == ("?" if ";" in text else extra)  # of a platform only pip can judge
            satisfies("1.0", requirement.versions)
    if installed("tpu-parity"):
        assert check_extra("test").extra == "test"


def test_a_broken_a_silent_and_a_hanging_import_are_reported() -> None:
    began = time.monotonic()
    found = probe_all(
        {
            "good": "import json; print('noise'); print(json.dumps(['a', 'b']))",
            "broken": "raise ImportError('libfoo.so: not found')",
            "crash": "import os; os._exit(3)",
            "silent": "pass",
            "hanging": "import time; time.sleep(60)",
        },
        limit_s=5.0,
    )
    assert found == {
        "good": Probe(True, ("a", "b")),
        "broken": Probe(False, error="ImportError: libfoo.so: not found"),
        "crash": Probe(False, error="ended with exit code 3"),
        "silent": Probe(False, error="gave no answer"),
        "hanging": Probe(False, error="no answer within 5 s"),
    }
    assert time.monotonic() - began < 30


def test_the_cache_folder_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor_module, "PROBES", {})
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a").write_bytes(b"x" * 100)
    (tmp_path / "b").write_bytes(b"x" * 11)
    found = examine()
    assert (found.cache, found.cache_bytes) == (str(tmp_path), 111)
    assert found.cpus >= 1


def test_the_plain_form(finds: Callable[[Findings], None]) -> None:
    finds(BROKEN)
    told = CliRunner().invoke(app, ["doctor"])
    lines = told.stdout.splitlines()
    assert lines[0] == "run: incomplete: `parity run` cannot work, see below"
    for line in (
        "libtpu: not installed",
        "jax devices: 8 x cpu (cpu)",
        "cuda: none",
        "torchax imports: fail: ModuleNotFoundError: No module named 'torchax'",
        "extra torch: complete",
        "extra torchax: incomplete: lacks torchax; jax is 0.9.0, wanted ==0.10.2; add it with: "
        "pip install 'tpu-parity[torchax]'",
        "cache: cache: 1.5 MB",
    ):
        assert line in lines
    assert "\x1b" not in told.stdout


def test_the_document(finds: Callable[[Findings], None]) -> None:
    finds(BROKEN)
    told = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(told.stdout)
    assert told.stderr == ""
    assert found["can_run"] is False
    assert found["versions"]["libtpu"] is None
    assert found["probes"]["jax"]["devices"] == ["cpu (cpu)"] * 8
    torchax = found["extras"][1]
    assert (torchax["extra"], torchax["complete"], torchax["lacks"]) == ("torchax", False, ["torchax"])
    assert torchax["disagrees"] == [{"package": "jax", "installed": "0.9.0", "wanted": "==0.10.2"}]


def test_only_strict_fails(finds: Callable[[Findings], None]) -> None:
    finds(BROKEN)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    assert CliRunner().invoke(app, ["doctor", "--strict"]).exit_code == 1
    no_tpu = tuple(replace(e, lacks=("libtpu",)) if e.extra == "tpu" else e for e in COMPLETE.extras)
    finds(replace(COMPLETE, extras=no_tpu))
    assert CliRunner().invoke(app, ["doctor", "--strict"]).exit_code == 0


def test_a_checkout_that_was_never_installed_says_so(finds: Callable[[Findings], None]) -> None:
    bare = replace(COMPLETE, extras=())
    assert not bare.can_run
    finds(bare)
    told = CliRunner().invoke(app, ["doctor"])
    assert "extras: unknown: tpu-parity is not installed, run `pip install -e .`" in told.stdout


def test_no_install_that_downgrades_or_that_is_for_developers_is_advised(
    metadata: dict[str, str], finds: Callable[[Findings], None]
) -> None:
    metadata.update({"torch": "2.14.0+cpu", "jax": "0.9.0"})
    newer, older = check_extra("torch"), check_extra("tpu")
    assert (newer.command, older.command) == ("", "")  # jax could be upgraded, torch would be downgraded
    finds(replace(COMPLETE, extras=(newer, older)))
    told = CliRunner().invoke(app, ["doctor"]).stdout
    assert "torch is 2.14.0+cpu, wanted ==2.13.0" in told
    assert "would downgrade" in told
    assert "pip install" not in told
    assert not {"docs", "test", "older"} & set(EXTRAS)
