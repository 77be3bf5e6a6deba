"""The GitHub Actions example of docs/ci.md, run step by step as its machine would."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, INSTALLS, blocks, extras, shell, working_copy

from parity.golden import Golden, GoldenWriter, StepRecords

yaml = pytest.importorskip("yaml")
pytest.importorskip("torchax")

TEXT = (DOCS / "ci.md").read_text()


@pytest.fixture(scope="module")
def workflow() -> dict[Any, Any]:
    (example,) = blocks(TEXT, "yaml")
    return yaml.safe_load(example)


@pytest.fixture(scope="module")
def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    (job,) = workflow["jobs"].values()
    return job["steps"]


@pytest.fixture(scope="module")
def ran(steps: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The example run to its end in a working copy: the folder, and exit codes by step."""
    folder = working_copy(tmp_path_factory.mktemp("ci"))
    codes = {}
    for step in steps:
        if "run" in step and not step["run"].startswith("pip "):
            done = shell(step["run"], folder, GITHUB_STEP_SUMMARY=str(folder / "summary.md"))
            assert done.returncode == 0, (step["name"], done.stdout, done.stderr)
            codes[step["name"]] = done.returncode
    return folder, codes


def test_the_workflow_has_the_shape_that_github_wants(workflow: dict[Any, Any], steps: list[dict[str, Any]]) -> None:
    assert workflow["name"]
    assert workflow.get("on", workflow.get(True)) == ["pull_request"]  # YAML 1.1 reads `on` as true
    (job,) = workflow["jobs"].values()
    assert set(job) == {"runs-on", "steps"}
    for step in steps:
        assert set(step) <= {"name", "uses", "with", "run", "if"}
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"])
    (python,) = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
    assert python == "3.11"  # a string: 3.10 as a number would be 3.1


def test_what_installs_names_an_extra_that_exists(steps: list[dict[str, Any]]) -> None:
    installing = [step["run"] for step in steps if "pip " in step.get("run", "")]
    assert len(installing) == 1
    for command in [*installing, *re.findall(r"`(pip install .*?)`", TEXT)]:
        found = INSTALLS.fullmatch(command)
        assert found is not None, command
        assert found[2] is None or found[2] in extras()


def test_the_example_passes_today(ran: tuple[Path, dict[str, int]]) -> None:
    folder, codes = ran
    assert list(codes) == ["Record the candidate", "Compare with the committed golden", "Summary"]
    suites = ElementTree.parse(folder / "parity.xml").getroot()
    assert list(suites.iter("testcase"))
    assert not list(suites.iter("failure"))
    assert (folder / "summary.md").read_text() == (folder / "parity.md").read_text() != ""


def test_what_is_uploaded_is_there_and_kept_after_a_failure(
    ran: tuple[Path, dict[str, int]], steps: list[dict[str, Any]]
) -> None:
    folder, _ = ran
    (upload,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert upload["if"] == "always()"
    assert [(folder / name).exists() for name in upload["with"]["path"].split()] == [True] * 3
    assert [step["if"] for step in steps if step.get("name") == "Summary"] == ["always()"]


def test_a_diverged_candidate_fails_the_comparing_step_alone(
    ran: tuple[Path, dict[str, int]], steps: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = working_copy(tmp_path)
    held = Golden.open(ran[0] / "candidate")
    with GoldenWriter(folder / "candidate", held.provenance) as writer:
        for index in held.steps:
            writer.write_step(moved(held.read_step(index)))
    by_name = {step["name"]: step["run"] for step in steps if "name" in step}
    summary = str(folder / "summary.md")
    assert shell(by_name["Compare with the committed golden"], folder).returncode == 1
    assert shell(by_name["Summary"], folder, GITHUB_STEP_SUMMARY=summary).returncode == 0
    failures = list(ElementTree.parse(folder / "parity.xml").getroot().iter("failure"))
    assert failures
    assert "transformer_blocks.1" in (folder / "summary.md").read_text()


def moved(step: StepRecords) -> StepRecords:
    """With one block's output off by one part in a thousand."""
    return replace(
        step,
        records=tuple(
            replace(r, sketch=r.sketch * 1.001)
            if r.sketch is not None and r.key.module == "transformer_blocks.1" and not r.key.is_input
            else r
            for r in step.records
        ),
    )
