"""Where the cache lies: what the environment says, else where the system has its users' caches."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from parity.cache import cache_dir


@pytest.mark.parametrize(
    ("own", "users", "expected"),
    [
        ("~/elsewhere", "/users/own", Path.home() / "elsewhere"),
        ("", "", Path.home() / ".cache" / "parity"),
        ("", "relative", Path.home() / ".cache" / "parity"),
        ("", "/users/own", Path("/users/own/parity")),
    ],
)
def test_cache_dir_follows_environment(own: str, users: str, expected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", users)
    assert cache_dir() == expected


def test_cache_dir_is_where_the_system_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARITY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name, appauthor: f"/Library/{name}/{appauthor}")
    assert cache_dir() == Path("/Library/parity/False")
