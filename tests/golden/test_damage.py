"""A damaged or forged golden is refused with the name of the file: never a traceback, never read silently."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, Provenance, verify
from parity.golden.disk.format import Manifest, decode_manifest, encode_manifest, own_checksum
from tests.support.forged import PART, Damage, Document, content, forged, header, listed, records, resealed
from tests.support.made import PROVENANCE, mixed_step, write


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "golden"
    write(folder, PROVENANCE, [mixed_step(step, sites=2) for step in (-1, 0, 1)])
    assert verify(folder) == []
    return folder


@pytest.fixture
def golden(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "golden")
    return tmp_path / "golden"


def last(fields: Document) -> Document:
    """The entry of the tensor that ends the file."""
    return max((x for name, x in fields.items() if name != "__metadata__"), key=lambda x: x["data_offsets"])


def replaced(make: Callable[[Path], object], file: str = PART) -> Damage:
    """Something else under the name of a file."""

    def damage(folder: Path) -> None:
        (folder / file).rename(folder.parent / "moved")
        make(folder / file)

    return damage


# What happened; a word of the refusal.
PARTS: list[tuple[Damage, str]] = [
    (content(lambda data: b""), "it has 0 bytes"),
    (content(lambda data: data[:-1]), "bytes where its golden lists"),
    (content(lambda data: data[:500] + bytes([data[500] ^ 4]) + data[501:]), "checksum"),
    (content(lambda data: data[:-1] + bytes([data[-1] ^ 4])), "checksum"),
    (lambda folder: shutil.copy(folder / "step-0001.safetensors", folder / PART), "checksum|bytes where"),
    (replaced(lambda file: None), "missing"),
    (replaced(os.mkfifo), "not a regular file"),
    (replaced(lambda file: file.symlink_to(file.parent.parent / "moved")), "leads out of its golden"),
    (replaced(lambda file: file.symlink_to(PART)), "symbolic links"),
    (listed(bytes=2**40), f"where its golden lists {2**40}"),
    (forged(lambda data: (2**60).to_bytes(8, "little") + b"{}" * 50), f"claims {2**60} bytes"),
    (forged(lambda data: data + b"more"), "end at byte"),
    (forged(lambda data: save({"weight": np.zeros(3)}, {"format": "pt"})), "not a part of a golden"),
    (header(lambda h: last(h)["data_offsets"].__setitem__(1, 2**40)), "the offsets"),
    (header(lambda h: last(h).update(shape=[2**32, 2**32])), "does not fill"),
    (header(lambda h: last(h).update(shape=[-1])), "the shape"),
    (header(lambda h: last(h).update(dtype="F8_E4M3")), "do not hold"),
    (header(lambda h: h.update({"1.sketch": h["0.sketch"]})), "gap or overlap"),
    (header(lambda h: h.update({"9.sketch": h.pop("1.sketch")})), "belongs to no record"),
    (header(lambda h: h.pop("__metadata__")), "not a part of a golden"),
    (records(lambda d: d["records"].pop()), "4 records where golden.json lists 5"),
    (records(lambda d: d.update(step=1)), "step 1, not step 0"),
    (records(lambda d: d["records"][1].update(key=d["records"][0]["key"])), "same key"),
    (records(lambda d: d["floors"][0].update(l2=-1)), "negative"),
    (records(lambda d: d["records"][0]["moments"].update(count=-1)), "moments.count"),
    (records(lambda d: d["records"][0]["moments"].update(mean=10**400)), "does not fit a double"),
    (records(lambda d: d["records"][0].update(scalar={"float": 1.0})), "not an array|two values"),
    (records(lambda d: d["records"][-1].update(scalar={"code": "1"})), "unknown type"),
]
MANIFESTS: list[tuple[Damage, str]] = [
    (content(lambda data: b"[]", "golden.json"), "not a JSON object"),
    (content(lambda data: b"[" * 200_000, "golden.json"), "nested too deeply"),
    (content(lambda data: b'{"kind": "parity-golden", "kind": "x"}', "golden.json"), "twice"),
    (content(lambda data: b'{"kind": "parity-golden", "seed": NaN}', "golden.json"), "NaN"),
    (content(lambda data: b'{"weights": {}}', "golden.json"), "not a golden"),
    (content(lambda data: b'{"kind": "parity-golden", "format": 2}', "golden.json"), "newer.*upgrade"),
    (content(lambda data: b'{"kind": "parity-golden", "format": true}', "golden.json"), "the format"),
    (content(lambda data: data.replace(b'"seed": 7', b'"seed": 8'), "golden.json"), "own checksum"),
    (lambda folder: os.truncate(folder / "golden.json", 2**40), "longer than"),
    (replaced(lambda file: file.symlink_to("golden.json"), "golden.json"), "symbolic links"),
    (resealed(lambda d: d.update(complete="yes")), "complete"),
    (resealed(lambda d: d.update(extra=1)), "extra"),
    (listed(bytes=2**62), r"parts\[1\].bytes"),
    (listed(step=0.0), r"parts\[1\].step"),
    (listed(step=-2), r"parts\[1\].step"),
    (listed(records=-1), r"parts\[1\].records"),
    (listed(sha256="0" * 63), "64 hexadecimal digits"),
    (listed(file="../secret.safetensors"), "names the file"),
    (listed(file="step-0001.safetensors"), "names the file"),
    (resealed(lambda d: d["parts"][1].pop("file")), "has no 'file'"),
    (resealed(lambda d: d["parts"].reverse()), "each once"),
    (resealed(lambda d: d["provenance"].pop("seed")), "has no 'seed'"),
    (resealed(lambda d: d["provenance"].update(seed="7")), "provenance.seed"),
    (resealed(lambda d: d["provenance"].update(shard=[2, 2])), "not an index"),
    (resealed(lambda d: d["provenance"].update(password="x")), "does not know"),
]


@pytest.mark.parametrize(
    ("damage", "word", "file"),
    [(*row, PART) for row in PARTS] + [(*row, "golden.json") for row in MANIFESTS],
    ids=[f"part-{i}" for i in range(len(PARTS))] + [f"manifest-{i}" for i in range(len(MANIFESTS))],
)
def test_damaged_golden_is_refused_by_reading_and_verifying(golden: Path, damage: Damage, word: str, file: str) -> None:
    damage(golden)
    with pytest.raises(UsageError, match=word) as caught:
        Golden.open(golden).read_step(0)
    assert f"{golden}/{file}" in str(caught.value)
    assert [(problem.file, problem.message) for problem in verify(golden)] == [(file, str(caught.value))]


@pytest.mark.parametrize(
    "change",
    [
        content(lambda data: json.dumps(json.loads(data), indent=4).encode(), "golden.json"),
        resealed(lambda d: d["provenance"].pop("shard")),  # a field that older versions did not write
    ],
)
def test_equivalent_golden_json_is_read(golden: Path, change: Damage) -> None:
    change(golden)
    assert verify(golden) == []
    assert Golden.open(golden).provenance == PROVENANCE


def test_verify_lists_every_problem(golden: Path, tmp_path: Path) -> None:
    resealed(lambda d: d.update(complete=False))(golden)
    resealed(lambda d: d["provenance"]["modules"].update({"a": "b", "b": "a"}))(golden)
    (golden / PART).unlink()
    (golden / "step-0001.safetensors").write_bytes(b"")
    problems = verify(golden)
    assert [problem.file for problem in problems] == ["golden.json", "golden.json", PART, "step-0001.safetensors"]
    assert "broken at 'a'" in problems[1].message
    GoldenWriter(tmp_path / "empty", PROVENANCE).finish()
    assert "no steps" in verify(tmp_path / "empty")[0].message


def test_password_in_a_model_url_is_neither_written_nor_read() -> None:
    url = "https://me:secret@host/m"
    encoded = encode_manifest(Manifest(Provenance("reference", "torch", url, {}, 0, 1)))
    assert b"secret" not in encoded
    document = json.loads(encoded)
    document["provenance"]["model"] = url  # of an older parity
    document["sha256"] = own_checksum(document)
    assert decode_manifest(json.dumps(document).encode(), "golden.json").provenance.model == "https://***@host/m"
