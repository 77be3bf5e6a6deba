"""`parity models` says what can be run, from names alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parity.cli import app
from parity.commands.models import FAMILIES, MODEL_FAMILIES, cached_folder, document
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL, tiny_names
from parity.settings import SETTINGS, parse


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path))
    return tmp_path / "models"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_document_lists_models_families_and_settings() -> None:
    found = json.loads(run("--json"))
    assert [m["model"] for m in found["models"]] == list(tiny_names())
    assert [m["model"] for m in found["models"] if m["default"]] == [DEFAULT_MODEL]
    assert {m["family"] for m in found["models"]} <= {f["family"] for f in found["families"]}
    assert [s["setting"] for s in found["settings"]] == [choice.name for choice in SETTINGS]
    kernel = next(s for s in found["settings"] if s["setting"] == "attention.kernel")
    assert kernel["default"] == {"torch": "flex", "torchax": "sdpa"}
    assert kernel["takes"]["torch"] == ["flex", "sdpa"]
    assert kernel["values"] == ["flex", "sdpa", "splash"]


def test_every_value_that_is_said_to_be_taken_is_taken() -> None:
    listed = 0
    for setting in document()["settings"]:
        for backend, values in setting["takes"].items():
            for value in values if isinstance(values, list) else ():
                # Blocks are splash's, and it is not the default.
                blocks = "block" in setting["setting"] and backend == "torchax"
                also = ["attention.kernel=splash"] if blocks else []
                parse(backend, [*also, f"{setting['setting']}={value}"])
                listed += 1
    assert listed > 50


def test_the_plain_form_has_one_line_for_each() -> None:
    text = run()
    assert "setting jit: default torch: false / torchax: true; values torch: false / torchax: false, true; " in text
    assert "setting refiner.mask: default exact; values exact, none; meaning the text refiner's own" in text
    assert [line for line in text.splitlines() if not re.match("(model|family|setting) ", line)] == []
    assert "\x1b" not in text


def test_whether_a_checkpoint_is_in_the_cache(cache: Path) -> None:
    name = tiny_names()[0]
    assert cached_folder(name) is None
    assert f"model {name}: family HunyuanVideo-1.5; default yes; in the cache no: made by the first run" in run()
    for folder in (f"{name}-v2", f"{name}-v10", f".{name}-v11-abc", f"{name}-vx", f"{name}-old-v12"):
        (cache / folder).mkdir(parents=True)
    assert cached_folder(name) == cache / f"{name}-v10"
    assert f"model {name}: family HunyuanVideo-1.5; default yes; in the cache yes" in run()


def test_the_families_are_those_that_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from parity.models.registry import family_of

    def made(kind: str) -> Path:
        folder = tmp_path / kind
        (folder / "transformer").mkdir(parents=True)
        (folder / "transformer" / "config.json").write_text(json.dumps({"_class_name": kind}))
        return folder

    assert {getattr(family_of(made(kind)), "title", None): kind for kind in FAMILIES.values()} == FAMILIES
    with pytest.raises(UsageError, match=r"names the class 'Other', which diffusers .* lacks"):
        family_of(made("Other"))
    with pytest.raises(UsageError, match=r"the config in '.*transformer' names no class; add \"_class_name\""):
        family_of(made(""))


def test_every_built_in_model_has_a_family() -> None:
    assert set(MODEL_FAMILIES) == set(tiny_names())
    assert set(MODEL_FAMILIES.values()) <= set(FAMILIES)


@pytest.mark.parametrize("module", ["parity.commands.models", "parity.commands.doctor"])
def test_neither_torch_nor_jax_is_imported(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{'torch', 'jax', 'diffusers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
