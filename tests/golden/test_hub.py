"""Goldens at hf:// and models at a revision: the hub's own client, with a hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub import REPO, commit_of, serve
from tests.support.made import pair

pytestmark = pytest.mark.slow

pytest.importorskip("huggingface_hub")
pytest.importorskip("fsspec")

Run = Callable[..., subprocess.CompletedProcess[str]]
MAIN = "from parity.__main__ import main; main()"
RESOLVE = "import sys, parity.models.registry as r; print(r.resolve_model(sys.argv[1]) / 'config.json')"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """`run(*arguments)`: parity with a hub whose revision `main` has two goldens, `old` one, and each a model."""
    for revision in ("main", "old"):
        pair(tmp_path / revision / "goldens", fault=9.0)
        (tmp_path / revision / "config.json").write_text(json.dumps({"_class_name": revision}), "utf-8")
    shutil.rmtree(tmp_path / "old/goldens/candidate")
    with serve({"main": tmp_path / "main", "old": tmp_path / "old"}) as url:
        rest = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}

        def called(*arguments: str, program: str = MAIN) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-c", program, *arguments]
            return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **rest}, timeout=300)

        yield called


def test_goldens_are_diffed_from_a_hub_and_missing_ones_refused(run: Run) -> None:
    where = f"hf://{REPO}@main/goldens"
    apart = run("diff", f"{where}/reference", f"{where}/candidate", "--json")
    assert apart.returncode == 1, apart.stderr
    assert json.loads(apart.stdout)["origin"]["site"] == "blocks.1:out"
    there = run("inspect", f"hf://{REPO}@{commit_of('old')}/goldens/reference", "--verify")
    assert there.returncode == 0, there.stderr
    for where in (f"hf://{REPO}@old/goldens/candidate", f"hf://{REPO}@never/goldens/reference", "hf://no/body/x"):
        done = run("inspect", where)
        assert (done.returncode, done.stdout) == (2, "")
        assert where in done.stderr
        assert "Traceback" not in done.stderr


def test_a_model_is_resolved_at_a_revision(run: Run) -> None:
    for name, found in ((REPO, "main"), (f"{REPO}@old", "old"), (f"{REPO}@{commit_of('old')}", "old")):
        assert json.loads(Path(run(name, program=RESOLVE).stdout.strip()).read_text())["_class_name"] == found
    assert f"cannot get model '{REPO}' at 'never'" in run(f"{REPO}@never", program=RESOLVE).stderr
