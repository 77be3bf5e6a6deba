"""Goldens behind URLs, in a file system in memory."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, verify
from tests.support.made import PROVENANCE, assert_same, mixed_step, write

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def url() -> str:
    return f"memory://goldens/{uuid.uuid4().hex}"


def stored(url: str) -> dict[str, bytes]:
    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return {path.rpartition("/")[2]: fs.cat_file(path) for path in fs.ls(root, detail=False)}


def test_remote_goldens_are_as_local_ones(url: str, tmp_path: Path) -> None:
    steps = [mixed_step(step) for step in (-1, 0, 1)]
    golden = Golden.open(write(url, PROVENANCE, steps))
    write(tmp_path / "local", PROVENANCE, steps)
    assert stored(url) == {file.name: file.read_bytes() for file in (tmp_path / "local").iterdir()}
    assert (golden.steps, golden.complete, verify(url)) == ((-1, 0, 1), True, [])
    for step in steps:
        assert_same(step, golden.read_step(step.step))
    shards = f"{url}-out".replace("://", "://user:secret@")
    for index in range(2):
        write(f"{shards}/shard-{index}", replace(PROVENANCE, shard=(index, 2)), [mixed_step(2)])
    assert (Golden.open(f"{shards}/").steps, verify(shards)) == ((2,), [])
    assert "secret" not in Golden.open(shards).name
    with GoldenWriter(url, PROVENANCE, overwrite=True) as writer:
        writer.write_step(mixed_step(1))
    assert {"before.safetensors", "step-0000.safetensors"}.isdisjoint(stored(url))
    with pytest.raises(UsageError, match=f"{url}x: there is no golden here"):
        Golden.open(f"{url}x")


def test_remote_recording_can_be_watched_and_resumed(url: str) -> None:
    writer = GoldenWriter(url, PROVENANCE)
    assert Golden.open(url).steps == ()
    writer.write_step(mixed_step(0))
    assert Golden.open(url).steps == (0,)
    assert [problem.file for problem in verify(url)] == ["golden.json"]
    with pytest.raises(UsageError, match="a golden here already"):
        GoldenWriter(url, PROVENANCE)
    with pytest.raises(UsageError, match="seed"):
        GoldenWriter(url, replace(PROVENANCE, seed=1), resume=True)
    with GoldenWriter(url, PROVENANCE, resume=True) as resumed:
        assert resumed.steps_done == (0,)
        resumed.write_step(mixed_step(1))
    assert Golden.open(url).complete


def test_an_upload_that_fails_leaves_the_steps_before(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://failing/{uuid.uuid4().hex}"
    writer = GoldenWriter(url, PROVENANCE)
    writer.write_step(mixed_step(0))

    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("503 slow down")

    with monkeypatch.context() as patch:
        patch.setattr(fsspec.get_filesystem_class("memory"), "put_file", refused)
        with pytest.raises(UsageError, match=f"{url}/step-0001.safetensors: 503 slow down"):
            writer.write_step(mixed_step(1))
    assert (Golden.open(url).steps, Golden.open(url).complete) == ((0,), False)
    writer.write_step(mixed_step(1))
    assert Golden.open(url).steps == (0, 1)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("gopher://a/b", "gopher://a/b: .*use a path, gs://, s3://, hf://"),
        # A refused connection is not an absent golden, and what is secret in a URL is not repeated.
        ("http://me:secret@127.0.0.1:1/run?signature=abc", r"http://\*\*\*@127.0.0.1:1/run\?\*\*\*/.*Cannot connect"),
    ],
)
def test_a_url_that_cannot_be_opened_is_refused(url: str, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        Golden.open(url)
    assert "secret" not in str(caught.value)
    assert "abc" not in str(caught.value)
