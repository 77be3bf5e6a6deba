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
from parity.golden import Golden, GoldenWriter, verify
from parity.golden.disk.format import Manifest, decode_manifest, encode_manifest, own_checksum
from parity.records import Provenance
from tests.support.forged import PART, Damage, Document, column, content, forged, header, listed, resealed, rows
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


UNSOUND = "no sound safetensors file"

# What happened; a word of the refusal.
PARTS: list[tuple[Damage, str]] = [
    (content(lambda data: b""), "it has 0 bytes"),
    (content(lambda data: data[:-1]), "bytes where its golden lists"),
    (content(lambda data: data[:500] + bytes([data[500] ^ 4]) + data[501:]), "checksum"),
    (content(lambda data: data[:-1] + bytes([data[-1] ^ 4])), "checksum"),
    (lambda folder: shutil.copy(folder / "step-0001.safetensors", folder / PART), "checksum|bytes where"),
    (replaced(lambda file: None), "missing"),
    (replaced(os.mkfifo), "not a regular file"),
    (replaced(lambda file: file.symlink_to(PART)), "symbolic links"),
    (listed(bytes=2**40), f"where its golden lists {2**40}"),
    (forged(lambda data: (2**60).to_bytes(8, "little") + b"{}" * 50), UNSOUND),
    (forged(lambda data: data + b"more"), UNSOUND),
    (forged(lambda data: save({"weight": np.zeros(3)}, {"format": "pt"})), "not a part of a golden"),
    (header(lambda h: last(h)["data_offsets"].__setitem__(1, 2**40)), UNSOUND),
    (header(lambda h: last(h).update(shape=[2**32, 2**32])), UNSOUND),
    (header(lambda h: last(h).update(shape=[-1])), UNSOUND),
    (header(lambda h: last(h).update(dtype="F8_E4M3")), f"{UNSOUND}|do not hold"),
    (header(lambda h: h.update({"value.9": h.pop("counts")})), "belongs to no record, or is missing"),
    (header(lambda h: h["counts"].update(dtype="F64")), "its counts should be int64"),
    (header(lambda h: h["moments"].update(shape=h["moments"]["shape"][::-1])), "its moments should be"),
    (header(lambda h: h.pop("__metadata__")), "not a part of a golden"),
    (column("step", lambda x: x.fill(1)), "step 1, not step 0"),
    (column("floors", lambda x: x.__setitem__((0, 0), -1)), "negative"),
    (column("counts", lambda x: x.__setitem__((0, 0), -1)), "less than none"),
    (column("counts", lambda x: x.__setitem__((0, 1), 2**40)), "more NaN and Inf"),
    (column("counts", lambda x: x.__setitem__((0, slice(1, 3)), 2**63 - 1)), "more NaN and Inf"),
    (rows(lambda r: r.pop()), "belongs to no record|should be|4 records where"),
    (rows(lambda r: r[1].__setitem__(slice(0, 4), r[0][:4])), "same key"),
    (rows(lambda r: r[0].__setitem__(2, "")), "the site is empty"),
    (rows(lambda r: r[0].__setitem__(4, "code")), "Invalid enum value"),
    (rows(lambda r: r[0].__setitem__(3, -1)), "`int` >= 0"),
    (rows(lambda r: r[0].__setitem__(3, True)), "Expected `int`"),
    (rows(lambda r: r[0].__setitem__(8, [2**40, 2**40])), "number of elements"),
    (rows(lambda r: r[0].__setitem__(9, 1)), "with the value of a scalar"),
    (rows(lambda r: r[0].__setitem__(11, not r[0][11])), "its sketches should be"),
    (rows(lambda r: [row.__setitem__(13, False) for row in r]), "bins without a floor"),
    (rows(lambda r: r[0].append(0)), "length"),
]
MANIFESTS: list[tuple[Damage, str]] = [
    (content(lambda data: b"[]", "golden.json"), "not a golden"),
    (content(lambda data: b"[" * 200_000, "golden.json"), "not JSON"),
    (content(lambda data: b'{"kind": "parity-golden", "seed": NaN}', "golden.json"), "not JSON"),
    (content(lambda data: b"\xff" + data, "golden.json"), "not JSON"),
    (content(lambda data: b'{"weights": {}}', "golden.json"), "not a golden"),
    (content(lambda data: b'{"kind": "parity-golden", "format": 3}', "golden.json"), "newer.*upgrade"),
    (content(lambda data: b'{"kind": "parity-golden", "format": 1}', "golden.json"), "older parity; record it again"),
    (content(lambda data: b'{"kind": "parity-golden", "format": true}', "golden.json"), "provenance|format"),
    (content(lambda data: data.replace(b'"seed": 7', b'"seed": 8'), "golden.json"), "own checksum"),
    (lambda folder: os.truncate(folder / "golden.json", 2**40), "longer than"),
    (replaced(lambda file: file.symlink_to("golden.json"), "golden.json"), "symbolic links"),
    (resealed(lambda d: d.update(complete="yes")), "complete"),
    (resealed(lambda d: d.update(extra=1)), "extra"),
    (listed(bytes=2**62), r"parts\[1\].bytes"),
    (listed(step=0.0), r"parts\[1\].step"),
    (listed(step=-2), r"parts\[1\].step"),
    (listed(records=-1), r"parts\[1\].records"),
    (listed(sha256="0" * 63), "sha256"),
    (listed(file="../secret.safetensors"), "unknown field `file`"),
    (resealed(lambda d: d["parts"][1].pop("bytes")), "`bytes`"),
    (resealed(lambda d: d["parts"].reverse()), "each once"),
    (resealed(lambda d: d["provenance"].pop("seed")), "`seed`"),
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
    (golden / PART).unlink()
    (golden / "step-0001.safetensors").write_bytes(b"")
    problems = verify(golden)
    assert [problem.file for problem in problems] == ["golden.json", PART, "step-0001.safetensors"]
    GoldenWriter(tmp_path / "empty", PROVENANCE).finish()
    assert "no steps" in verify(tmp_path / "empty")[0].message


def test_password_in_a_model_url_is_neither_written_nor_read() -> None:
    url = "https://me:secret@host/m"
    encoded = encode_manifest(Manifest(provenance=Provenance("reference", "torch", url, {}, 0, 1)))
    assert b"secret" not in encoded
    document = json.loads(encoded)
    document["provenance"]["model"] = url  # of an older parity
    document["sha256"] = own_checksum(document)
    assert decode_manifest(json.dumps(document).encode(), "golden.json").provenance.model == "https://***@host/m"
