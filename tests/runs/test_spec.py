"""What a run was asked for comes back from its folder, and as a command that asks for it again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from parity.runs.request import FILE, Request, RunSpec
from parity.settings import parse

REFERENCE, CANDIDATE = parse("torch", []), parse("torchax", ["attention.mask=zero_kv"])
PLAIN = RunSpec.of(Request("tiny-hunyuan-video-1.5", REFERENCE, CANDIDATE))
FULL = replace(
    PLAIN, model="my model", steps=3, seed=7, prompt="a cat's\npaw", golden="gs://b/g", port="/p.py:build",
    stages=("transformer", "vae"), sites="all", values=("a*", "b"), checks="logic", isolate="steps",
)  # fmt: skip


@pytest.mark.parametrize("spec", [PLAIN, FULL], ids=["plain", "full"])
def test_it_comes_back_from_a_folder(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(spec.to_json())
    assert RunSpec.read(tmp_path) == spec


@pytest.mark.parametrize(
    ("spec", "command"),
    [
        (PLAIN, "parity run -c attention.mask=zero_kv"),
        (PLAIN.with_settings(candidate=["attention.mask=exact"]), "parity run -c attention.mask=exact"),
        (
            PLAIN.with_settings(reference=["dtype=bfloat16"]),
            "parity run -r dtype=bfloat16 -c attention.mask=zero_kv",
        ),
    ],
)
def test_its_command_names_what_is_no_default(spec: RunSpec, command: str) -> None:
    assert spec.command() == command


def test_what_a_golden_has_of_its_own_is_named() -> None:
    spec = replace(PLAIN, golden="/g", candidate=())
    assert spec.command() == "parity run -m tiny-hunyuan-video-1.5 --steps 1 --inputs /g"


def test_a_command_holds_no_secrets() -> None:
    assert "secret" not in replace(PLAIN, golden="s3://user:secret@b/g?token=secret").command()


def test_its_command_names_everything() -> None:
    words = shlex.split(FULL.command())
    assert words == [
        "parity", "run", "-m", "my model", "--steps", "3", "--prompt", "a cat's\npaw", "--inputs",
        "gs://b/g", "-p", "/p.py:build", "-c", "attention.mask=zero_kv", "--stages", "transformer,vae", "--sites",
        "all", "--values", "a*", "--values", "b", "--checks", "logic", "--isolate", "steps",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"), [("steps", -1), ("stages", ["tail"]), ("model", 3), ("candidate", "a=b"), ("evil", "x.py:f")]
)
def test_a_request_that_no_run_writes_is_refused(key: str, value: object, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({**json.loads(PLAIN.to_json()), key: value}))
    with pytest.raises(msgspec.ValidationError, match=key):
        RunSpec.read(tmp_path)
