"""Goldens behind URLs: in memory, and on a server that speaks S3 over a real socket."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, Provenance, StepRecords, merge, verify

pytestmark = pytest.mark.slow

Make = Callable[..., StepRecords]
fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    root = "memory://goldens" if request.param == "memory" else request.getfixturevalue("bucket")
    return f"{root}/{uuid.uuid4().hex}"


def write(where: str | Path, provenance: Provenance, *steps: StepRecords) -> None:
    with GoldenWriter(where, provenance) as writer:
        for step in steps:
            writer.write_step(step)


def stored(url: str) -> dict[str, bytes]:
    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return {path.rpartition("/")[2]: fs.cat_file(path) for path in fs.ls(root, detail=False)}


def test_remote_is_what_local_is(
    url: str, tmp_path: Path, provenance: Provenance, make_step: Make, assert_same: Callable[..., None]
) -> None:
    steps = [make_step(step) for step in (-1, 0, 1)]
    write(url, provenance, *steps)
    write(tmp_path, provenance, *steps)
    assert stored(url) == {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    golden = Golden.open(url)
    assert golden.steps == (-1, 0, 1)
    assert golden.complete
    for step in steps:
        assert_same(step, golden.read_step(step.step))
    assert verify(url) == []


def test_a_recording_can_be_watched_and_resumed(url: str, provenance: Provenance, make_step: Make) -> None:
    writer = GoldenWriter(url, provenance)
    assert Golden.open(url).steps == ()
    writer.write_step(make_step(0))
    assert Golden.open(url).steps == (0,)
    assert [problem.file for problem in verify(url)] == ["golden.json"]
    with pytest.raises(UsageError, match="a golden here already"):
        GoldenWriter(url, provenance)
    with pytest.raises(UsageError, match="seed"):
        GoldenWriter(url, replace(provenance, seed=1), resume=True)
    with GoldenWriter(url, provenance, resume=True) as resumed:
        assert resumed.steps_done == (0,)
        resumed.write_step(make_step(1))
    assert Golden.open(url).complete


def test_overwriting_removes_old_parts(url: str, provenance: Provenance, make_step: Make) -> None:
    write(url, provenance, make_step(0), make_step(1))
    with GoldenWriter(url, provenance, overwrite=True) as writer:
        writer.write_step(make_step(1))
    assert sorted(stored(url)) == ["golden.json", "step-0001.safetensors"]


def test_damage_is_noticed(url: str, provenance: Provenance, make_step: Make) -> None:
    write(url, provenance, make_step(0), make_step(1))
    fs, root = fsspec.core.url_to_fs(url)
    part = f"{root}/step-0000.safetensors"
    content = fs.cat_file(part)
    for changed, said in ((content[:-1], "has .* bytes where"), (content[:-1] + b"!", "checksum")):
        fs.pipe_file(part, changed)
        with pytest.raises(UsageError, match=f"{url}/step-0000.safetensors: .*{said}"):
            Golden.open(url).read_step(0)
    fs.rm_file(part)
    with pytest.raises(UsageError, match=f"{url}/step-0000.safetensors: the file is missing"):
        Golden.open(url).read_step(0)
    assert Golden.open(url).read_step(1).records


def test_merging_from_and_to_urls(url: str, tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    write(f"{url}/a", provenance, make_step(0))
    write(tmp_path / "b", provenance, make_step(1))
    merge(f"{url}/out", [f"{url}/a", str(tmp_path / "b")])
    assert Golden.open(f"{url}/out/").steps == (0, 1)
    assert verify(f"{url}/out") == []


def test_an_upload_that_fails_leaves_the_steps_before(
    provenance: Provenance, make_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://failing/{uuid.uuid4().hex}"
    writer = GoldenWriter(url, provenance)
    writer.write_step(make_step(0))
    memory = fsspec.get_filesystem_class("memory")

    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("503 slow down")

    with monkeypatch.context() as patch:
        patch.setattr(memory, "put_file", refused)
        with pytest.raises(UsageError, match=f"{url}/step-0001.safetensors: 503 slow down; check the URL"):
            writer.write_step(make_step(1))
    golden = Golden.open(url)
    assert golden.steps == (0,)
    assert not golden.complete
    writer.write_step(make_step(1))
    assert Golden.open(url).steps == (0, 1)


def test_no_golden_at_a_url(url: str) -> None:
    with pytest.raises(UsageError, match=f"{url}: there is no golden here"):
        Golden.open(url)


def test_a_bucket_that_is_not_there(bucket: str, provenance: Provenance) -> None:
    with pytest.raises(UsageError, match=r"s3://nowhere/a/golden\.json: .*bucket"):
        GoldenWriter("s3://nowhere/a", provenance)


def test_an_unknown_scheme() -> None:
    with pytest.raises(UsageError, match=r"gopher://a/b: .*gopher.*use a path, gs://, s3://, hf://"):
        Golden.open("gopher://a/b")


def test_fsspec_or_its_backend_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(
            UsageError, match=r"gs:// needs fsspec; install it with: pip install 'tpu-parity\[remote\]'"
        ):
            Golden.open("gs://a/b")
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.setitem(registry.known_implementations, "lost", {"class": "lost_module.Lost", "err": "install lost"})
    with pytest.raises(
        UsageError, match=r"lost://a: install lost; install it with: pip install 'tpu-parity\[remote\]'"
    ):
        Golden.open("lost://a")


def test_file_urls_are_paths(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    write(f"file://{tmp_path}/a", provenance, make_step(0))
    assert Golden.open(tmp_path / "a").steps == (0,)


def test_a_refused_connection_is_not_an_absent_golden() -> None:
    with pytest.raises(
        UsageError, match=r"http://\*\*\*@127\.0\.0\.1:1/run\?\*\*\*/golden\.json: Cannot connect.*check the URL"
    ) as error:
        Golden.open("http://me:secret@127.0.0.1:1/run?signature=abc")
    assert "secret" not in str(error.value)
    assert "abc" not in str(error.value)


def test_a_url_of_an_archive_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"zip://nosuch\.zip: "):
        Golden.open("zip://nosuch.zip")
