"""Goldens at hf:// and models at a revision: the hub's own client, against a hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.hub import REPO, commit_of, serve
from tests.support.made import pair

pytestmark = pytest.mark.slow

pytest.importorskip("huggingface_hub")
pytest.importorskip("fsspec")


class Run(Protocol):
    """`run(*arguments)`: a program in a process of its own."""

    def __call__(self, *arguments: str, program: str = ...) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """`run(*arguments)`: parity beside a hub whose revision `main` has two goldens, `old` one; with a model each."""
    for revision in ("main", "old"):
        pair(tmp_path / revision / "goldens", fault=9.0)
        model = tmp_path / revision / "transformer"
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"_class_name": revision}), "utf-8")
    shutil.rmtree(tmp_path / "old/goldens/candidate")
    with serve({"main": tmp_path / "main", "old": tmp_path / "old"}) as url:
        rest = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}

        def called(
            *arguments: str, program: str = "from parity.__main__ import main; main()"
        ) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", program, *arguments]
            return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **rest}, timeout=300)

        yield called


def test_goldens_are_inspected_and_diffed_from_a_hub(run: Run) -> None:
    where = f"hf://{REPO}@main/goldens"
    done = run("inspect", f"{where}/reference", "--verify")
    assert (done.returncode, "every part is whole" in done.stdout) == (0, True), done.stderr
    apart = run("diff", f"{where}/reference", f"{where}/candidate", "--json")
    assert apart.returncode == 1, apart.stderr
    assert json.loads(apart.stdout)["origin"]["site"] == "blocks.1:out"


def test_a_revision_that_has_it_not_is_told(run: Run) -> None:
    there = run("inspect", f"hf://{REPO}@{commit_of('old')}/goldens/reference")
    assert there.returncode == 0, there.stderr
    for where in (f"hf://{REPO}@old/goldens/candidate", f"hf://{REPO}@never/goldens/reference", "hf://no/body/x"):
        done = run("inspect", where)
        assert (done.returncode, done.stdout) == (2, "")
        assert where in done.stderr
        assert "Traceback" not in done.stderr
        assert "defect" not in done.stderr


RESOLVE = """
import sys
from parity.errors import UsageError
from parity.models.registry import resolve_model
try:
    print((resolve_model(sys.argv[1]) / "transformer/config.json").read_text())
except UsageError as error:
    print(error)
"""


def test_a_model_at_a_revision(run: Run) -> None:
    for name, found in ((REPO, "main"), (f"{REPO}@old", "old"), (f"{REPO}@{commit_of('old')}", "old")):
        assert json.loads(run(name, program=RESOLVE).stdout)["_class_name"] == found
    done = run(f"{REPO}@never", program=RESOLVE)
    assert f"cannot get model '{REPO}' at 'never' from the hub: " in done.stdout


@pytest.mark.parametrize("model", [None, "tiny-hunyuan-video-1.5", "./here", f"{REPO}@old"])
def test_a_revision_is_of_a_model_on_the_hub(model: str | None) -> None:
    from parity.commands.parts.options import Generation
    from parity.errors import UsageError

    with pytest.raises(UsageError, match="--revision is of a model on the hub"):
        Generation(model=model, revision="old")


def test_revision_is_part_of_the_model_s_name() -> None:
    from parity.commands.parts.options import Generation

    assert Generation(model=REPO, revision="v1").name == f"{REPO}@v1"
