"""Every command that the README shows is run, in its order, and ends as the README says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from parity import cli

ROOT = Path(__file__).parents[2]
DIVERGES = (
    "attention.mask=none",
    "attention.mask=zero_kv",
    "explain run",
    "schedule_dtype=bfloat16",
    "latents_dtype=bfloat16",
)
"""Commands with these words end with exit code 1, all others with 0."""


def commands(text: str) -> list[str]:
    """The lines of a document's shell blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


README = (ROOT / "README.md").read_text()
PARITY = [c for c in commands(README) if c.startswith("parity ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize("command", PARITY)
def test_readme_command(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    assert ended.value.code in (None, 0, 1), out.err
    assert (ended.value.code == 1) == any(word in command for word in DIVERGES), out.out


def test_the_readme_opens_with_make_run_and_make_test() -> None:
    first = commands(README)[:2]
    assert first == ["make run", "make test"]
    for target in first:
        subprocess.run([*target.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def test_every_other_command_installs_or_makes() -> None:
    others = [c for c in commands(README) if not c.startswith("parity ")]
    assert all(c.startswith(("make ", "pip install ")) for c in others)


@pytest.mark.parametrize("document", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target
