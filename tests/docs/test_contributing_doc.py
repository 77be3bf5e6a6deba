"""docs/contributing.md, carried out in a copy of the repository: files written, edits made, commands run."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from documents import DOCS, ROOT, shell

pytestmark = pytest.mark.slow

STEP = re.compile(r"^```(python|diff|sh)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = re.split(r"^## ", (DOCS / "contributing.md").read_text(), flags=re.MULTILINE)[1:]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its tests, to be edited."""
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("parity", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def edited(text: str, diff: str) -> str:
    """The text with a diff applied: its ` ` and `+` lines in place of its ` ` and `-` lines."""
    marked = [(line[0], line[1:]) if line.strip() else (" ", line) for line in diff.splitlines(keepends=True)]
    before, after = ("".join(line for mark, line in marked if mark in kept) for kept in (" -", " +"))
    assert text.count(before) == 1, f"{text.count(before)} places for\n{before}"
    return text.replace(before, after)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_a_section_is_carried_out(section: str, copy: Path) -> None:
    ran = 0
    for kind, name, content in STEP.findall(section):
        if kind == "sh":
            done = shell(content, copy, PYTHONPATH=str(copy))
            assert done.returncode == 0, f"{content}\n{done.stdout}\n{done.stderr}"
            ran += 1
        elif kind == "diff":
            (copy / name).write_text(edited((copy / name).read_text(), content))
        else:
            assert not (copy / name).exists(), f"{name} is no new file"
            (copy / name).parent.mkdir(exist_ok=True)
            (copy / name).write_text(content)
    assert ran, "nothing shows that it works"


def test_an_edit_that_fits_nowhere_is_seen() -> None:
    assert edited("a\nb\nc\n", " a\n+x\n b\n") == "a\nx\nb\nc\n"
    assert edited("a\nb\n", "-a\n+x\n b\n") == "x\nb\n"
    with pytest.raises(AssertionError, match="0 places"):
        edited("a\n", " b\n+x\n")
