"""docs/ci.md: its commands run in order in a repository of somebody's own; what it says of the action."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, INSTALLS, ROOT, blocks, extras, shell

from parity.golden import verify

pytestmark = pytest.mark.slow

yaml = pytest.importorskip("yaml")
pytest.importorskip("torchax")

TEXT = (DOCS / "ci.md").read_text()
COMMANDS = [line for block in blocks(TEXT, "sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    return yaml.safe_load(blocks(TEXT, "yaml")[0])


@pytest.fixture(scope="module")
def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    (job,) = workflow["jobs"].values()
    return job["steps"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in which every command was run, each with success."""
    folder = tmp_path_factory.mktemp("repository")
    for command in COMMANDS:
        done = shell(command, folder)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "::error" not in done.stderr
    return folder


def test_the_commands_are_all_there() -> None:
    assert [command.split()[1] for command in COMMANDS] == ["init", "record", "gate"]


def test_what_they_leave_is_what_the_text_says(repository: Path) -> None:
    assert verify(repository / "golden" / "my-model") == verify(repository / "candidate") == []
    suites = ElementTree.parse(repository / "parity.xml").getroot()
    assert list(suites.iter("testcase"))
    assert not list(suites.iter("failure"))
    assert (repository / "parity.md").read_text().startswith("## ✅ parity: pass")
    (line,) = re.findall(r"::error file=my_port.py,line=(\d+)", TEXT)
    assert (repository / "my_port.py").read_text().splitlines()[int(line) - 1].startswith("def build(")


def test_the_workflow_has_the_shape_that_github_wants(workflow: dict[Any, Any], steps: list[dict[str, Any]]) -> None:
    assert set(workflow) <= {"name", "on", True, "permissions", "jobs"}  # YAML 1.1 reads `on` as true
    assert workflow.get("on", workflow.get(True)) == ["pull_request"]
    (job,) = workflow["jobs"].values()
    assert set(job) == {"runs-on", "steps"}
    for step in steps:
        assert set(step) <= {"name", "uses", "with", "if"}
        assert re.fullmatch(r"actions/[a-z-]+@v\d+|OWNER/parity@COMMIT", step["uses"])


def test_the_workflow_gives_the_action_what_it_takes(workflow: dict[Any, Any], steps: list[dict[str, Any]]) -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    (given,) = [step["with"] for step in steps if step["uses"].startswith("OWNER/")]
    assert set(given) <= set(inputs)
    assert {name for name, one in inputs.items() if one.get("required")} <= set(given)
    assert set(re.findall(r"`([a-z]+-[a-z]+|packages)`", TEXT)) <= set(inputs)
    gate = shlex.split(COMMANDS[-1])
    assert [given["port"], "--golden", given["golden"]] == gate[2:5]
    assert workflow["permissions"]["pull-requests"] == "write", "else the comment is refused"


def test_what_is_uploaded_is_there_and_kept_after_a_failure(repository: Path, steps: list[dict[str, Any]]) -> None:
    (upload,) = [step for step in steps if "upload-artifact" in step["uses"]]
    assert upload["if"] == "always()"
    assert (repository / upload["with"]["path"]).exists()


def test_what_installs_names_an_extra_that_exists() -> None:
    commands = [re.sub(r"\s+", " ", found) for found in re.findall(r"`(pip install [^`]*)`", TEXT)]
    assert len(commands) == 3
    for command in commands:
        found = INSTALLS.fullmatch(command)
        assert found is not None, command
        assert found[2] is None or found[2] in extras()
