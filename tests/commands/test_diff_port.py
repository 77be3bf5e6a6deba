"""`parity diff GOLDEN FILE.py:FUNCTION`, in a repository of somebody's own and by the action's steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import parity
from parity.commands.diff import error_line
from parity.golden import Golden, verify
from tests.support.cli import cli
from tests.support.tiny_dit import PORT, write

yaml = pytest.importorskip("yaml")
pytest.importorskip("torchax")

ROOT = Path(parity.__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
LINE = PORT.splitlines().index("def build(case):") + 1
"""Where the port's function is defined."""
REFERENCE = ("--reference-port", "model.py:reference")

Act = Callable[..., dict[str, "subprocess.CompletedProcess[str]"]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a port of it, the same with a fault, and the golden, recorded there."""
    folder = tmp_path_factory.mktemp("toy")
    write(folder)
    write(folder, PORT.replace("var + 1e-5", "var + 1e-2"), "broken.py")
    cli("record", "golden", "--reference-port", "model.py:reference", cwd=folder, code=0)
    return folder


@pytest.fixture
def act(repository: Path, tmp_path: Path) -> Act:
    """Run the action's own steps as GitHub does, without a network: after a failure those that say `always()`."""
    (tmp_path / "tools").mkdir()
    for name in ("pip", "gh"):
        (tmp_path / "tools" / name).write_text('#!/bin/sh\necho "$(basename "$0")" "$@" >> "$CALLS"\n')
        (tmp_path / "tools" / name).chmod(0o755)
    variables = {
        "PATH": os.pathsep.join([str(tmp_path / "tools"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "CALLS": str(tmp_path / "calls"), "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(repository),
        "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "RUNNER_TEMP": str(tmp_path),
    }  # fmt: skip

    def run(**inputs: str) -> dict[str, subprocess.CompletedProcess[str]]:
        ended: dict[str, subprocess.CompletedProcess[str]] = {}
        given = {
            name: inputs.get(name.replace("-", "_"), one.get("default", "")) for name, one in ACTION["inputs"].items()
        }
        values = {f"inputs.{name}": value for name, value in given.items()}
        values |= {"github.repository": "owner/toy", "github.event.pull_request.number": "7"}
        for step in ACTION["runs"]["steps"]:
            wants = step.get("if", "success()").replace("inputs.comment-token", repr(given["comment-token"]))
            failed = any(done.returncode for done in ended.values())
            if "run" not in step or (failed and "always()" not in wants) or "'' != ''" in wants:
                continue
            own = {
                name: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: values[found[1]], text)
                for name, text in step.get("env", {}).items()
                if name != "PARITY_CACHE"  # a home folder is nobody's to fill
            }
            bash = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
            ended[step["name"]] = subprocess.run(
                bash,
                cwd=repository,
                env={**os.environ, **variables, **own},
                capture_output=True,
                text=True,
                timeout=600,
            )
        return ended

    return run


@pytest.mark.slow
def test_the_action_passes_a_port_and_writes_what_it_says(act: Act, tmp_path: Path) -> None:
    args = "--reference-port model.py:reference --out kept\n"
    ran = act(port="port.py:build", golden="golden", args=args, packages="flax -r needs.txt", comment_token="t")
    assert {name: done.returncode for name, done in ran.items()} == dict.fromkeys(ran, 0), ran
    assert list(ran) == ["Names of the caches", "Install", "Compare", "Summary", "Comment"]
    installed, asked, commented = (tmp_path / "calls").read_text().splitlines()
    assert installed.startswith(f"pip install --constraint {ROOT}/constraints.txt ")
    assert asked.startswith("gh api repos/")
    assert installed.endswith(f" {ROOT}[torchax] flax -r needs.txt")
    assert commented == f"gh pr comment 7 --body-file {tmp_path}/parity.md"
    assert (tmp_path / "summary.md").read_text().startswith("## ✅ parity: pass")


@pytest.mark.slow
def test_the_action_fails_a_broken_port_and_still_says_why(act: Act, tmp_path: Path) -> None:
    ran = act(port="broken.py:build", golden="golden", args="--reference-port model.py:reference")
    assert {name: done.returncode for name, done in ran.items() if done.returncode} == {"Compare": 1}
    (line,) = [text for text in ran["Compare"].stderr.splitlines() if text.startswith("::")]
    assert line.startswith(f"::error file=broken.py,line={LINE},title=parity%3A fail (logic)::first divergence: ")
    assert list(ran)[-1] == "Summary", "no token, no comment"
    assert "blocks.0:out" in (tmp_path / "summary.md").read_text()


def test_the_action_has_the_shape_that_github_wants() -> None:
    for step in ACTION["runs"]["steps"]:
        if "run" in step:
            assert step["shell"] == "bash", "a composite action has no default"
            assert "${{" not in step["run"], "what a pull request names would be run as shell"
    assert set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text())) == set(ACTION["inputs"])


def test_what_is_kept_is_what_record_writes(repository: Path) -> None:
    cli("diff", "golden", "port.py:build", *REFERENCE, "--out", "again", cwd=repository, code=0)
    assert verify(repository / "again") == []
    ours = Golden.open(repository / "again").provenance
    assert (ours.side, ours.backend) == ("candidate", "port")
    assert (
        "--overwrite"
        in cli("diff", "golden", "port.py:build", *REFERENCE, "--out", "again", cwd=repository, code=2).said
    )
    cli("diff", "golden", "again", cwd=repository, code=0)


def test_json_stays_one_document_beside_an_annotation(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    ran = cli("diff", "golden", "broken.py:build", *REFERENCE, "--format", "json", cwd=repository, code=1)
    assert ran.json["origin"]["site"] == "blocks.0:out"
    assert "::error file=broken.py," in ran.err
    again = f"parity diff golden broken.py:build {' '.join(REFERENCE)} --format json --out candidate"
    assert ran.json["next"] == [f"{again}; parity explain golden candidate"]
    (repository / "candidate").mkdir()  # of the first time that it was typed
    ran = cli("diff", "golden", "broken.py:build", *REFERENCE, cwd=repository, code=1)
    assert ran.out.splitlines()[-1].endswith("--out candidate-2; parity explain golden candidate-2")
    (repository / "candidate").rmdir()
    (repository / "raises.py").write_text("\n\ndef build(case):\n    raise ValueError('50%')\n")
    ran = cli("diff", "golden", "raises.py:build", *REFERENCE, cwd=repository, code=2)
    assert "::error file=raises.py,line=3,title=parity%3A error::" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nowhere port.py:build", "there is no golden here"),
        ("golden nowhere.py:build --model tiny-cogvideox-1.0", "nowhere.py"),
        ("golden port.py:build", "is of the port 'model.py:reference', whose inputs are its own"),
        ("golden port.py:build --overwrite", "--overwrite replaces what --out holds: give both"),
        ("golden port.py:build --out ./golden/ --overwrite", "--out: './golden/' is read, or lies in what is read"),
        ("golden golden --candidate dtype=bfloat16", "the options of a port are for FILE.py:FUNCTION"),
    ],
)
def test_wrong_usage(words: str, said: str, repository: Path) -> None:
    assert said in cli("diff", *words.split(), cwd=repository, code=2).err
    assert verify(repository / "golden") == []


def test_an_annotation_is_escaped_as_its_format_asks() -> None:
    line = error_line("50% of\r\n`a:b`, c", file="a,b:c%.py", line="3", title="x: y, z")
    assert line == "::error file=a%2Cb%3Ac%25.py,line=3,title=x%3A y%2C z::50%25 of%0D%0A`a:b`, c"
