"""docs/report.md: its commands are the README's, which `test_readme` runs; its sizes are the code's."""

from __future__ import annotations

from documents import DOCS, ROOT, blocks

from parity.report.page.pack import MOST_BINS


def test_its_commands_are_run_as_the_readme_s() -> None:
    (commands,) = blocks((DOCS / "report.md").read_text(encoding="utf-8"), "sh")
    assert commands in blocks((ROOT / "README.md").read_text(encoding="utf-8"), "sh")


def test_the_number_of_row_bins() -> None:
    assert f"{MOST_BINS:,} failing sites" in (DOCS / "report.md").read_text(encoding="utf-8")
