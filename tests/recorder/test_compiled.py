"""torch.compile dies where torchax is imported, as in a process that ran other tests: `compiled.py` has its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_compiled_parts_are_recorded() -> None:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/recorder/compiled.py", "--tb", "short"]
    root = Path(__file__).parents[2]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, cwd=root)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "10 passed" in done.stdout
