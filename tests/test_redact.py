"""Secrets of URLs are replaced wherever one is stored or shown."""

from __future__ import annotations

import pytest

from parity.redact import secrets_of, without_secrets


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
def test_users_and_queries_of_urls_are_hidden(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://user:it'shunter2@127.0.0.1:1/x", "hunter2"),
        ("https://user:hun ter2@127.0.0.1:1/x", "ter2"),
        ("s3://user:hunter2@b/x", "hunter2"),
        ("https://h/x?X-Amz-Signature=hunter2", "hunter2"),
    ],
)
def test_secrets_in_a_librarys_own_words_are_hidden(url: str, secret: str) -> None:
    said = f"Invalid bucket name {url!r}: {url.partition('://')[2]}"
    assert secret not in without_secrets(said, secrets_of(url))
    assert secrets_of("gs://bucket/run@v2") == ()  # no user: an @ in a path is a name
