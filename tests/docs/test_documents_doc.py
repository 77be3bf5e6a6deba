"""docs/documents.md: its commands, and the program that holds a document to its schema."""

from __future__ import annotations

from pathlib import Path

import pytest
from documents import DOCS, ROOT, blocks, shell, working_copy

TEXT = (DOCS / "documents.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (commands,) = blocks(TEXT, "sh")
    done = shell(commands, working_copy(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "document comparison: " in done.stdout
    return tmp_path


def test_a_document_is_held_to_its_schema(folder: Path) -> None:
    (program,) = blocks(TEXT, "python")
    (folder / "hold.py").write_text(program, encoding="utf-8")
    done = shell("python hold.py", folder)
    assert done.returncode == 0, done.stderr
    document = folder / "comparison.json"
    document.write_text(document.read_text("utf-8").replace('"verdict": "pass"', '"verdict": "perhaps"', 1), "utf-8")
    assert "'perhaps' is not one of" in shell("python hold.py", folder).stderr


def test_make_schemas_makes_them() -> None:
    done = shell("make --dry-run schemas", ROOT)
    assert "benchmarks/schemas.py" in done.stdout
