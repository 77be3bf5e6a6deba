"""docs/report.md: its commands are the README's, which `test_readme` runs; its sizes are the code's."""

from __future__ import annotations

from pathlib import Path

from documents import DOCS, ROOT, blocks, shell, working_copy

from parity.report.page.golden import MOST_CELLS
from parity.report.page.pack import MOST_BINS


def test_its_commands_are_run_as_the_readme_s() -> None:
    commands, _ = blocks((DOCS / "report.md").read_text(encoding="utf-8"), "sh")
    assert commands in blocks((ROOT / "README.md").read_text(encoding="utf-8"), "sh")


def test_the_number_of_row_bins() -> None:
    assert f"{MOST_BINS:,} failing sites" in (DOCS / "report.md").read_text(encoding="utf-8")


def test_a_golden_s_page(tmp_path: Path) -> None:
    _, command = blocks((DOCS / "report.md").read_text(encoding="utf-8"), "sh")
    done = shell(command, working_copy(tmp_path))
    assert (done.returncode, done.stdout) == (0, "golden.html\n"), done.stderr
    assert "Golden of tiny-hunyuan-video-1.5" in (tmp_path / "golden.html").read_text(encoding="utf-8")
    assert f"above {MOST_CELLS:,} records" in (DOCS / "report.md").read_text(encoding="utf-8")
