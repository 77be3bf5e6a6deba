"""A service that does not answer is given up in bounded time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.golden.disk import store


def test_what_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = store.RemoteStore(f"local://{tmp_path}")
    forever = threading.Event()
    monkeypatch.setattr(store, "ANSWER", 0.05)
    monkeypatch.setattr(made._fs, "info", lambda path: forever.wait(60))
    with pytest.raises(UsageError, match=r"golden\.json: no answer within 0 s; check the URL"):
        made.read("golden.json", 10)
    forever.set()


def test_what_is_raised_there_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        store.within(1.0, lambda: 1 // 0)
    assert store.within(1.0, lambda: 7) == 7
