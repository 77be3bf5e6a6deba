"""Every command that the README shows is run, in its order, and ends as the README says."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
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
    first = commands(README)[:3]
    assert first == ["make install", "make run", "make test"]
    for target in first:
        subprocess.run([*target.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def test_every_other_command_installs_or_makes() -> None:
    others = [c for c in commands(README) if not c.startswith("parity ")]
    assert all(c.startswith(("make ", "pip install ", "pip wheel ")) for c in others)


def test_the_readme_is_short_and_in_the_order_of_need() -> None:
    assert len(README.splitlines()) <= 80
    headings = re.findall(r"^## (.*)$", README, re.MULTILINE)
    assert headings == ["Your own checkpoint", "Your own script", "Two machines", "CI", "Install"]
    assert README.index("](docs/pictures/terminal.svg)") < README.index("```sh")


def test_what_the_readme_says_of_the_layout_is_there() -> None:
    named = re.findall(r"`([\w/.]+)`", README.rpartition("| where | what |")[2])
    assert {"parity/hooks", "parity/golden", "parity/cli.py", "tests"} <= set(named)
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "parity" / name).exists(), name


def test_the_wheel_is_called_as_the_readme_says() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert set(re.findall(r"tpu_parity-([\d.]+)-", README)) == {version}


@pytest.mark.parametrize("document", [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"], ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target
