"""Secrets of URLs are replaced wherever one is stored or shown."""

from __future__ import annotations

import pytest

from parity.redact import without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gs://bucket/run-7", "gs://bucket/run-7"),
        ("s3://key:secret@host/run", "s3://***@host/run"),
        ("https://a@b@host/x?X-Amz-Signature=12#t", "https://***@host/x?***"),
        ("https://host/x#token", "https://host/x#***"),
        ("'http://u:p@h/a' and http://v:q@h/b?c, e@mail", "'http://***@h/a' and http://***@h/b?*** e@mail"),
        ("no url: a@b?c", "no url: a@b?c"),
    ],
)
def test_users_and_queries_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
