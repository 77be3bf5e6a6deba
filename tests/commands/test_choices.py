"""What a shell completes, and what --help says of options whose values are known."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from parity.commands.parts import choices
from parity.models.registry import tiny_names
from parity.report import formats
from parity.runs.stages.run import STAGES
from parity.settings import SETTINGS


def completed(line: str) -> list[str]:
    """What Typer offers a shell for a line."""
    asked = {
        "_PARITY_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'parity'; from parity.cli import app; app(prog_name='parity')",
    ]
    done = subprocess.run(
        command, env={**os.environ, **asked}, capture_output=True, text=True, check=False, timeout=120
    )
    return [text.partition("\t")[0] for text in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("parity run --model tiny-cog", ["tiny-cogvideox-1.0", "tiny-cogvideox-1.5"]),
        ("parity run --candidate attention.mask=zero", ["attention.mask=zero_kv", "attention.mask=zero_kv_rescaled"]),
        ("parity record gpu --setting matmul", ["matmul_precision="]),
        ("parity run --forcing s", ["step"]),
        ("parity run --stages text,t", ["text,transformer"]),
        ("parity diff a b --format m", ["markdown"]),
        ("parity run --sites b", ["blocks"]),
        ("parity inspect gpu --format", ["--format"]),
    ],
)
def test_a_shell_is_offered_what_an_option_takes(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_what_is_offered_is_what_is_taken() -> None:
    assert choices.FORMATS == formats.NAMES
    assert choices.STAGES == STAGES
    assert choices.models("") == list(tiny_names())
    assert choices.settings("") == [f"{setting.name}=" for setting in SETTINGS]
    for setting in SETTINGS:
        for text in choices.settings(f"{setting.name}="):
            assert setting.kind.read(text.partition("=")[2]) is not None
    assert choices.comma_separated(STAGES)("vae,") == ["vae,text", "vae,transformer"]


def test_help_shows_the_choices() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "parity", "run", "--help"], capture_output=True, text=True, check=True
    )
    page = re.sub(r"\s+", " ", shown.stdout.replace("-\n", "-"))
    for said in (
        "--forcing none|step|module", "--rounds both|structure|precision", "--sites blocks|all|GLOB",
        "--format html|json|junit|markdown|text", "--stages text,transformer,vae", "--model NAME",
    ):  # fmt: skip
        assert said in page
    assert all(name in page.replace("- ", "-") for name in tiny_names())
