"""Where the cache lies: what the environment says, else where the system has its users' caches."""

from __future__ import annotations

import pathlib

import platformdirs
import pytest

from parity.cache import cache_dir


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_CACHE", "~/elsewhere")
    assert cache_dir() == pathlib.Path.home() / "elsewhere"
    monkeypatch.setenv("PARITY_CACHE", "")
    for users in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", users)
        assert cache_dir() == pathlib.Path.home() / ".cache" / "parity"
    monkeypatch.setenv("XDG_CACHE_HOME", "/users/own")
    assert cache_dir() == pathlib.Path("/users/own/parity")


def test_without_them_it_is_where_the_system_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def users(name: str, appauthor: bool) -> str:
        asked.append((name, appauthor))
        return "/Users/me/Library/Caches/parity"

    monkeypatch.delenv("PARITY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_dir", users)
    assert cache_dir() == pathlib.Path("/Users/me/Library/Caches/parity")
    assert asked == [("parity", False)]
    monkeypatch.setenv("PARITY_CACHE", "/elsewhere")
    assert cache_dir() == pathlib.Path("/elsewhere")
