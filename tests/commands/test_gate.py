"""`parity gate`: in a repository of somebody's own, by the action's steps; and what it is told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import parity
from parity.commands.ci.annotate import Place, error_line, place_of, wanted
from parity.golden import Golden, verify
from tests.ports import PORT, write
from tests.support.cli import cli as call

yaml = pytest.importorskip("yaml")
pytest.importorskip("torchax")

ROOT = Path(parity.__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
LINE = PORT.splitlines().index("def build(case):") + 1
"""Where the port's function is defined."""
STUB = '#!/bin/sh\necho "$(basename "$0")" "$@" >> "$CALLS"\n'
"""A tool that needs the network, by what it was called with."""

Step = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a port of it, the same with a fault, and the golden, recorded there."""
    folder = tmp_path_factory.mktemp("toy")
    write(folder)
    write(folder, PORT.replace("var + 1e-5", "var + 1e-2"), "broken.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = call("record", "golden", "--reference-path", "model.py:reference")
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def machine(repository: Path, tmp_path: Path) -> Step:
    """GitHub's machine, as far as it is without a network: runs a command in the repository."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("pip", "gh"):
        (tools / name).write_text(STUB)
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {
        "PATH": path,
        "CALLS": str(tmp_path / "calls"),
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(repository),
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "RUNNER_TEMP": str(tmp_path),
    }

    def run(command: str, folder: Path = repository, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", command],
            cwd=folder,
            env={**os.environ, **variables, **more},
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def filled(text: str, inputs: dict[str, str]) -> str:
    """A value of the action with its expressions evaluated."""
    values = {
        **{f"inputs.{name}": inputs.get(name, one.get("default", "")) for name, one in ACTION["inputs"].items()},
        "github.repository": "owner/toy",
        "github.event.pull_request.number": "7",
    }
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: values[found[1]], text)


def act(machine: Step, inputs: dict[str, str]) -> dict[str, subprocess.CompletedProcess[str]]:
    """Run the action's own steps as GitHub does: after a failure those that say `always()`."""
    ended: dict[str, subprocess.CompletedProcess[str]] = {}
    for step in ACTION["runs"]["steps"]:
        failed = any(done.returncode for done in ended.values())
        wants = step.get("if", "success()").replace("inputs.comment-token", repr(inputs.get("comment-token", "")))
        skipped = (failed and "always()" not in wants) or "'' != ''" in wants
        if "run" in step and not skipped:
            given = {name: filled(value, inputs) for name, value in step.get("env", {}).items()}
            # Where compiled programs lie is the test's own: a home folder is nobody's to fill.
            ended[step["name"]] = machine(step["run"], **{n: v for n, v in given.items() if n != "PARITY_CACHE"})
    return ended


def test_the_action_passes_a_port_and_writes_what_it_says(machine: Step, tmp_path: Path) -> None:
    ran = act(
        machine,
        {
            "port": "port.py:build",
            "golden": "golden",
            "args": "--reference-path model.py:reference --out kept\n",
            "packages": "flax -r needs.txt",
            "comment-token": "t",
        },
    )
    assert {name: done.returncode for name, done in ran.items()} == dict.fromkeys(ran, 0), ran
    assert list(ran) == ["Names of the caches", "Install", "Gate", "Summary", "Comment"]
    assert "::error" not in ran["Gate"].stderr
    installed, commented = (tmp_path / "calls").read_text().splitlines()
    index = ACTION["inputs"]["torch-index"]["default"]
    assert installed == f"pip install --extra-index-url {index} {ROOT}[torchax] flax -r needs.txt"
    assert commented == f"gh pr comment 7 --body-file {tmp_path}/parity.md"
    assert re.fullmatch(r"packages=[0-9a-f]{16}\n", (tmp_path / "output").read_text())
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("## ✅ parity: pass")
    assert summary == (tmp_path / "parity.md").read_text()


def test_the_action_fails_a_broken_port_and_still_says_why(machine: Step, tmp_path: Path) -> None:
    inputs = {"port": "broken.py:build", "golden": "golden", "args": "--reference-path model.py:reference"}
    ran = act(machine, inputs)
    assert {name: done.returncode for name, done in ran.items() if done.returncode} == {"Gate": 1}
    (line,) = [text for text in ran["Gate"].stderr.splitlines() if text.startswith("::")]
    assert line.startswith(f"::error file=broken.py,line={LINE},title=parity%3A fail (structure)::first divergence: ")
    assert "blocks.0 output" in line
    assert list(ran)[-1] == "Summary", "no token, no comment"
    assert "blocks.0:out" in (tmp_path / "summary.md").read_text()


def test_a_comment_that_is_refused_leaves_the_verdict(machine: Step, tmp_path: Path) -> None:
    (comment,) = [step["run"] for step in ACTION["runs"]["steps"] if step.get("name") == "Comment"]
    (tmp_path / "tools" / "gh").write_text("#!/bin/sh\nexit 1\n")
    assert machine(comment, NUMBER="7").stdout == "", "nothing was judged: there is nothing to say"
    (tmp_path / "parity.md").write_text("## fail\n")
    done = machine(comment, NUMBER="7")
    assert (done.returncode, done.stdout.startswith("::warning title=parity::")) == (0, True)


def test_a_broken_port_is_annotated_and_json_stays_one_document(machine: Step, repository: Path) -> None:
    within = repository / "within"
    within.mkdir(exist_ok=True)
    arguments = "../broken.py:build --golden ../golden --reference-path ../model.py:reference --json"
    done = machine(f"parity gate {arguments}", within)
    assert done.returncode == 1
    assert (json.loads(done.stdout)["verdict"], json.loads(done.stdout)["origin"]["site"]) == ("fail", "blocks.0:out")
    assert f"\n::error file=broken.py,line={LINE}," in done.stderr, "GitHub names files from the repository's root"


def test_what_is_kept_is_what_record_writes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    options = ("port.py:build", "--golden", "golden", "--reference-path", "model.py:reference", "--out", "again")
    assert call("gate", *options).code == 0
    ours = Golden.open("again")
    assert (verify("again"), ours.provenance.side, ours.provenance.backend) == ([], "candidate", "port")
    assert ours.provenance.command.startswith("parity gate port.py:build")
    twice = call("gate", *options)
    assert (twice.code, "--overwrite" in twice.err) == (2, True)
    assert call("diff", "golden", "again").code == 0


def test_a_port_that_raises_is_annotated_too(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    (repository / "raises.py").write_text("\n\ndef build(case):\n    raise ValueError('50%')\n")
    done = call("gate", "raises.py:build", "--golden", "golden", "--reference-path", "model.py:reference", "--annotate")
    (line,) = [text for text in done.err.splitlines() if text.startswith("::")]
    assert (done.code, done.out) == (2, "")
    assert line.startswith("::error file=raises.py,line=3,title=parity%3A not judged::")
    assert "50%25" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["port.py", "--golden", "golden"], "PORT is FILE:FUNCTION, as in my_port.py:build; found 'port.py'"),
        (["nowhere.py:build", "--golden", "golden"], "PORT: 'nowhere.py' cannot be read: No such file"),
        (["port.py:build", "--golden", "nowhere"], "there is no golden here"),
        (
            ["port.py:build", "--golden", "golden"],
            "is of the port 'model.py:reference', whose inputs are its own",
        ),
        (["port.py:build", "--golden", "golden", "--overwrite"], "--overwrite replaces what --out holds: give both"),
        (
            ["port.py:build", "--golden", "golden", "--out", "./golden/", "--overwrite"],
            "--out: './golden/' is the golden itself",
        ),
        (["port.py:build", "--golden", "golden", "--map-out", "x"], "--map-out saves what --map auto proposes"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    done = call("gate", *arguments)
    assert (done.code, done.out, said in done.err) == (2, "", True), done.err
    assert verify("golden") == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\n\n@f\ndef build(case): ...\n", 4),
        ("if x:\n    def build(case): ...\nelse:\n    build = other\n", 4),
        ("from elsewhere import made as build\n", 1),
        ("class A:\n    def build(self): ...\n\n\nbuild = A().build\n", 5),
        ("x = 1\nclass Net:\n    def build(self): ...\n", 1),
        ("x = 1\ny = '\\d'\ndef build(case):\n    return (\n", 4),
        ("\0", 1),
        ("", 1),
    ],
)
def test_the_line_is_that_of_the_function(source: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(source)
    assert place_of(f"{tmp_path}/port.py:build").line == line


def test_an_annotation_is_escaped_as_its_format_asks() -> None:
    line = error_line(Place("a,b:c%.py", 3), "x: y, z", "50% of\r\n`a:b`, c")
    assert line == "::error file=a%2Cb%3Ac%25.py,line=3,title=x%3A y%2C z::50%25 of%0D%0A`a:b`, c"


def test_github_s_machines_want_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert (wanted(False), wanted(True)) == (False, True)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert wanted(False)


def test_the_action_has_the_shape_that_github_wants() -> None:
    runs: dict[str, Any] = ACTION["runs"]
    assert runs["using"] == "composite"
    for step in runs["steps"]:
        assert ("uses" in step) != ("run" in step)
        if "run" in step:
            assert step["shell"] == "bash", "a composite action has no default"
            assert "${{" not in step["run"], "what a pull request names would be run as shell"
        else:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
    named = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert named == set(ACTION["inputs"])
    kept = [path for step in runs["steps"] if "cache@" in step.get("uses", "") for path in step["with"]["path"].split()]
    assert kept == ["~/.cache/pip", "~/.cache/parity", "~/.cache/huggingface"]
    assert [step["env"]["PARITY_CACHE"] for step in runs["steps"] if step.get("name") == "Gate"] == [kept[1]]
