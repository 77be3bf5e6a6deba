"""Whatever happened to a golden on its way is an error that names the file: never a traceback, never read silently."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, Provenance, StepRecords, strict, verify
from parity.golden.disk.codec import encode_step
from parity.golden.disk.format import Manifest, decode_manifest, encode_manifest, own_checksum
from parity.golden.strict import MalformedError

Make = Callable[..., StepRecords]
PART = "step-0000.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, provenance: Provenance, make_step: Make) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "golden"
    with GoldenWriter(folder, provenance) as writer:
        for step in (-1, 0, 1):
            writer.write_step(make_step(step, sites=2))
    assert verify(folder) == []
    return folder


@pytest.fixture
def golden(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "golden")
    return tmp_path / "golden"


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change golden.json as a forger would: its own checksum is made right again."""
    document = json.loads((folder / "golden.json").read_text())
    change(document)
    document["sha256"] = own_checksum(document)
    (folder / "golden.json").write_text(json.dumps(document))


def forge(folder: Path, content: bytes) -> None:
    """Replace step 0's part, and list it in golden.json with the right size and checksum."""

    def listed(document: dict[str, Any]) -> None:
        document["parts"][1] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    (folder / PART).write_bytes(content)
    edit(folder, listed)


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: object, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def check_refused(folder: Path, said: str, file: str = PART) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        Golden.open(folder).read_step(0)
    assert f"{folder}/{file}" in str(caught.value)
    problems = verify(folder)
    assert [problem.file for problem in problems] == [file]
    assert problems[0].message == str(caught.value)


def test_a_part_that_was_cut_off(golden: Path) -> None:
    content = (golden / PART).read_bytes()
    for length in (0, 7, 8, 100, len(content) - 1):
        (golden / PART).write_bytes(content[:length])
        check_refused(golden, f"it has {length} bytes where its golden lists {len(content)}; the file is damaged")


def test_a_part_with_one_bit_flipped(golden: Path) -> None:
    content = bytearray((golden / PART).read_bytes())
    for position in (0, 9, 500, len(content) // 2, len(content) - 1):
        content[position] ^= 4
        (golden / PART).write_bytes(content)
        check_refused(golden, "does not match the checksum")
        content[position] ^= 4


def test_a_part_that_is_missing(golden: Path) -> None:
    (golden / PART).unlink()
    check_refused(golden, "the file is missing")


def test_a_part_swapped_with_another_steps(golden: Path) -> None:
    shutil.copy(golden / "step-0001.safetensors", golden / PART)
    check_refused(golden, "does not match the checksum|bytes where its golden lists")


def test_a_part_swapped_with_another_goldens(
    golden: Path, tmp_path: Path, provenance: Provenance, make_step: Make
) -> None:
    with GoldenWriter(tmp_path / "other", provenance) as writer:
        writer.write_step(make_step(0, sites=2, seed=1))
    shutil.copy(tmp_path / "other" / PART, golden / PART)
    check_refused(golden, "does not match the checksum|bytes where its golden lists")


def test_a_part_swapped_with_its_listing(golden: Path) -> None:
    forge(golden, (golden / "step-0001.safetensors").read_bytes())
    check_refused(golden, "it holds step 1, not step 0")


def test_a_part_that_is_a_pipe_a_folder_or_a_link_to_elsewhere(golden: Path, tmp_path: Path) -> None:
    content = (golden / PART).read_bytes()
    (golden / PART).unlink()
    os.mkfifo(golden / PART)
    check_refused(golden, "not a regular file")
    (golden / PART).unlink()
    (golden / PART).mkdir()
    check_refused(golden, "not a regular file")
    (golden / PART).rmdir()
    (tmp_path / "secret").write_bytes(content)
    (golden / PART).symlink_to(tmp_path / "secret")
    check_refused(golden, "a link that leads out of its golden")


def test_all_problems_are_listed(golden: Path) -> None:
    edit(golden, lambda d: d.update(complete=False))
    edit(golden, lambda d: d["provenance"]["modules"].update({"a.b": "a"}))
    (golden / PART).unlink()
    (golden / "step-0001.safetensors").write_bytes(b"")
    problems = verify(golden)
    assert [problem.file for problem in problems] == ["golden.json", "golden.json", PART, "step-0001.safetensors"]
    assert "module tree is broken at 'a.b'" in problems[1].message


def test_a_module_tree_with_a_loop(golden: Path) -> None:
    edit(golden, lambda d: d["provenance"]["modules"].update({"a": "b", "b": "a"}))
    assert "broken at 'a'" in verify(golden)[0].message


def test_an_empty_golden_is_a_problem(tmp_path: Path, provenance: Provenance) -> None:
    GoldenWriter(tmp_path, provenance).finish()
    assert "holds no steps" in verify(tmp_path)[0].message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"format": ' + b"1" * 5000 + b"}", "not JSON"),
        (b'{"kind": "parity-golden", "kind": "x"}', "'kind' stands twice"),
        (b'{"kind": "parity-golden", "seed": NaN}', "literal NaN"),
        (b'{"kind": "parity-golden", "seed": 1e999}', "does not fit a double"),
        (b'{"weights": {}}', "this is not a golden"),
        (b'{"kind": "parity-golden", "format": 2, "new": 1}', "format 2 is newer than 1.*upgrade"),
        (b'{"kind": "parity-golden", "format": 0}', "the format"),
        (b'{"kind": "parity-golden", "format": "1"}', "the format"),
        (b'{"kind": "parity-golden", "format": true}', "the format"),
        (b'{"kind": "parity-golden", "format": 1}', "has no 'complete'"),
    ],
)
def test_a_golden_json_that_is_none(golden: Path, content: bytes, said: str) -> None:
    (golden / "golden.json").write_bytes(content)
    check_refused(golden, said, "golden.json")


FORGERIES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda d: d.update(complete="yes"), "complete should be true or false"),
    (lambda d: d.update(extra=1), "'extra', which this version"),
    (lambda d: d.update(parts={}), "parts should be a list"),
    (lambda d: d["parts"][1].update(bytes=-1), r"parts\[1\].bytes"),
    (lambda d: d["parts"][1].update(bytes=2**62), r"parts\[1\].bytes"),
    (lambda d: d["parts"][1].update(bytes=1e3), r"parts\[1\].bytes"),
    (lambda d: d["parts"][1].update(bytes=True), r"parts\[1\].bytes"),
    (lambda d: d["parts"][1].update(step=0.0), r"parts\[1\].step"),
    (lambda d: d["parts"][1].update(step=10**30), r"parts\[1\].step"),
    (lambda d: d["parts"][1].update(step=-2), r"parts\[1\].step"),
    (lambda d: d["parts"][1].update(records=-1), r"parts\[1\].records"),
    (lambda d: d["parts"][1].update(sha256="0" * 63), "64 hexadecimal digits"),
    (lambda d: d["parts"][1].update(sha256=None), "should be a string"),
    (lambda d: d["parts"][1].update(file="../secret.safetensors"), r"names the file '\.\./secret.safetensors'"),
    (lambda d: d["parts"][1].update(file="/etc/passwd"), "names the file '/etc/passwd'"),
    (lambda d: d["parts"][1].update(file="step-0001.safetensors"), "names the file"),
    (lambda d: d["parts"][1].update(file=["step-0000.safetensors"]), "should be a string"),
    (lambda d: d["parts"][1].pop("file"), "has no 'file'"),
    (lambda d: d["parts"].append(d["parts"][0]), "order of their steps, each once"),
    (lambda d: d["parts"].reverse(), "order of their steps, each once"),
    (lambda d: d.update(provenance=[]), "provenance should be an object"),
    (lambda d: d["provenance"].pop("seed"), "has no 'seed'"),
    (lambda d: d["provenance"].update(seed="7"), "provenance.seed should be an integer"),
    (lambda d: d["provenance"].update(settings={"dtype": 1}), r"provenance.settings\['dtype'\] should be a string"),
    (lambda d: d["provenance"].update(model="m" * 10**5), "100000 characters"),
    (lambda d: d["provenance"].update(devices="cpu"), "devices should be a list"),
    (lambda d: d["provenance"].update(shard=[2, 2]), "not an index below a count"),
    (lambda d: d["provenance"].update(shard=[0]), "1 entries, not 2"),
    (lambda d: d["provenance"].update(password="x"), "does not know"),
]


@pytest.mark.parametrize(("change", "said"), FORGERIES)
def test_a_forged_golden_json(golden: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    edit(golden, change)
    check_refused(golden, said, "golden.json")


def test_a_digit_changed_in_golden_json(golden: Path) -> None:
    text = (golden / "golden.json").read_text()
    (golden / "golden.json").write_text(text.replace('"seed": 7', '"seed": 8'))
    check_refused(golden, "does not match its own checksum", "golden.json")


def test_spacing_and_line_ends_of_golden_json_do_not_matter(golden: Path) -> None:
    document = json.loads((golden / "golden.json").read_text())
    (golden / "golden.json").write_text(json.dumps(document, indent=4).replace("\n", "\r\n"))
    assert verify(golden) == []


def test_a_provenance_without_what_later_versions_added_can_be_read(golden: Path) -> None:
    edit(golden, lambda d: d["provenance"].pop("shard"))
    assert Golden.open(golden).provenance.shard == (0, 1)


def test_a_golden_json_of_absurd_size(golden: Path) -> None:
    with open(golden / "golden.json", "r+b") as file:
        file.truncate(2**40)  # sparse
    check_refused(golden, "longer than", "golden.json")


def test_absurd_sizes_take_no_memory(golden: Path) -> None:
    """A part of a listed terabyte is seen to be a kilobyte; a header of 2^60 bytes is not read."""
    edit(golden, lambda d: d["parts"][1].update(bytes=2**40))
    check_refused(golden, f"where its golden lists {2**40}")
    forge(golden, (2**60).to_bytes(8, "little") + b"{}" * 50)
    check_refused(golden, f"its header claims {2**60} bytes")


def test_a_foreign_safetensors_file(golden: Path, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros(3)}, tmp_path / "foreign", {"format": "pt"})
    forge(golden, (tmp_path / "foreign").read_bytes())
    check_refused(golden, "not a part of a golden")


def test_a_part_that_is_a_pickle(golden: Path) -> None:
    import pickle

    forge(golden, pickle.dumps({"a": 1}) * 10)
    check_refused(golden, "the file is damaged")


def last(header: dict[str, Any]) -> dict[str, Any]:
    """The entry of the tensor that ends the file."""
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    return max(entries, key=lambda entry: entry["data_offsets"])


def in_document(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    def changed(header: dict[str, Any]) -> None:
        document = json.loads(header["__metadata__"]["parity"])
        change(document)
        header["__metadata__"]["parity"] = json.dumps(document)

    return changed


FORGED_PARTS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda h: last(h)["data_offsets"].__setitem__(1, 2**40), "the offsets of tensor"),
    (lambda h: last(h)["data_offsets"].__setitem__(1, last(h)["data_offsets"][1] - 4), "does not fill bytes"),
    (lambda h: last(h)["data_offsets"].pop(), "not two numbers"),
    (lambda h: last(h).update(shape=[2**32, 2**32]), "does not fill bytes"),
    (lambda h: last(h).update(shape=[-1]), "the shape of tensor"),
    (lambda h: last(h).update(shape=[1] * 65), "65 entries"),
    (lambda h: last(h).update(dtype="F8_E4M3"), "which goldens do not hold"),
    (lambda h: last(h).update(strides=[1]), "does not know"),
    (lambda h: h.update({"1.sketch": h["0.sketch"]}), "leave a gap or overlap"),
    (lambda h: h.pop("1.sketch"), "leave a gap or overlap"),
    (lambda h: h.update({"9.sketch": h.pop("1.sketch")}), "tensor '9.sketch' belongs to no record"),
    (lambda h: h.update({"1.floor": h.pop("0.floor"), "7.floor": h.pop("1.floor")}), "belongs to no record"),
    (lambda h: h["__metadata__"].update(parity="[]"), "not a JSON object"),
    (lambda h: h.update(__metadata__=[]), "not an object of strings"),
    (lambda h: h["__metadata__"].update(more=1), "not an object of strings"),
    (lambda h: h.pop("__metadata__"), "not a part of a golden"),
    (in_document(lambda d: d["records"].pop()), "holds 4 records where golden.json lists 5"),
    (in_document(lambda d: d.update(step=1)), "it holds step 1, not step 0"),
    (in_document(lambda d: d["records"][1].update(key=d["records"][0]["key"])), "records have the same key"),
    (in_document(lambda d: d["floors"][1].update(key=d["floors"][0]["key"])), "floors have the same key"),
    (in_document(lambda d: d["floors"][0].update(l2=-1)), "is negative"),
    (in_document(lambda d: d["floors"][0].update(l2="Infinity")), "should be a number"),
    (in_document(lambda d: d["records"][0]["moments"].update(count=-1)), r"records\[0\].moments.count"),
    (in_document(lambda d: d["records"][0]["moments"].update(mean=10**400)), "does not fit a double"),
    (in_document(lambda d: d["records"][0].update(frame=[1])), "1 entries, not 2"),
    (in_document(lambda d: d["records"][0].update(scalar={"float": 1.0})), "not an array|two values"),
    (in_document(lambda d: d["records"][-1].update(scalar={"code": "1"})), "unknown type 'code'"),
    (in_document(lambda d: d["records"][0]["key"].append(0)), "5 entries"),
]


@pytest.mark.parametrize(("change", "said"), FORGED_PARTS)
def test_a_forged_part(golden: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    header, body = split((golden / PART).read_bytes())
    change(header)
    forge(golden, joined(header, body))
    check_refused(golden, said)


def test_a_forged_part_with_more_behind_its_tensors(golden: Path) -> None:
    forge(golden, (golden / PART).read_bytes() + b"more")
    check_refused(golden, "its tensors end at byte")


# What a value of a JSON document is replaced by.
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**32, 2**63, 2**64, 10**40, 1.5, -0.0, "", "nan", "../x", "a" * 5000, [], [1], {},
    {"int": 2**70}, {"float": "x"}, "F32", "BF16", "scalar", "tensor",
)  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn, document: Any) -> Any:
    """The document with one to three of its nodes replaced, removed, or doubled."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        nodes = [(document, name) for name in (document if isinstance(document, dict) else range(len(document)))]
        for holder, name in nodes:
            child = holder[name]
            if isinstance(child, dict | list):
                nodes.extend((child, key) for key in (child if isinstance(child, dict) else range(len(child))))
        if not nodes:
            return document
        holder, name = draw(st.sampled_from(nodes))
        action = draw(st.sampled_from(["replace", "remove", "double", "copy"]))
        if action == "replace":
            holder[name] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif action == "remove":
            del holder[name]
        elif action == "copy":
            other, key = draw(st.sampled_from(nodes))
            if (isinstance(other, dict) and key in other) or (isinstance(other, list) and key < len(other)):
                holder[name] = copy.deepcopy(other[key])
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[name]))
        else:
            holder[f"{name} "] = holder[name]
    return document


def read_all(folder: Path) -> list[StepRecords] | None:
    """All steps; None where the golden is refused. Anything but a UsageError escapes and fails the test."""
    problems = verify(folder)
    try:
        opened = Golden.open(folder)
        steps = [opened.read_step(step) for step in opened.steps]
    except UsageError as error:
        assert problems
        assert str(folder) in str(error)  # noqa: PT017 (whether it is raised is the question)
        return None
    return steps


SLOW = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(st.data())
@SLOW
def test_fuzzed_golden_json(sound: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    for file in sound.iterdir():
        os.link(file, folder / file.name)
    document = data.draw(mutations(json.loads((sound / "golden.json").read_text())))
    unforged = data.draw(st.booleans())
    if not unforged and isinstance(document, dict):
        document["sha256"] = own_checksum(document)
    (folder / "golden.json").unlink()
    (folder / "golden.json").write_text(json.dumps(document))
    read = read_all(folder)
    if unforged and document != json.loads((sound / "golden.json").read_text()):
        assert read is None
    shutil.rmtree(folder)


@given(st.data())
@SLOW
def test_fuzzed_part_whose_checksum_was_made_right(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    for file in sound.iterdir():
        shutil.copy(file, folder)
    header, body = split((sound / PART).read_bytes())
    what = data.draw(st.sampled_from(["header", "document", "bytes"]))
    if what == "header":
        header = data.draw(mutations(header))
    elif what == "document":
        document = data.draw(mutations(json.loads(header["__metadata__"]["parity"])))
        header["__metadata__"]["parity"] = json.dumps(document)
    content = bytearray(joined(header, body))
    if what == "bytes":
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    forge(folder, bytes(content))
    steps = read_all(folder)
    if steps is not None:  # what was accepted can be written, so it satisfies all that the writer demands
        for step in steps:
            GoldenWriter(folder, Golden.open(folder).provenance, overwrite=True).write_step(step)
    shutil.rmtree(folder)


@given(st.data())
@SLOW
def test_fuzzed_bytes_are_never_read(
    sound: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("fuzzed")
    for file in sound.iterdir():
        os.link(file, folder / file.name)
    name = data.draw(st.sampled_from(sorted(file.name for file in sound.iterdir())))
    content = (sound / name).read_bytes()
    start = data.draw(st.integers(0, len(content) - 1))
    end = data.draw(st.integers(start, min(len(content), start + 20)))
    changed = content[:start] + data.draw(st.binary(max_size=20)) + content[end:]
    (folder / name).unlink()
    (folder / name).write_bytes(changed)
    steps = read_all(folder)
    if name != "golden.json":
        assert (steps is None) == (changed != content)
    elif steps is not None:  # spacing may change
        assert json.loads(changed) == json.loads(content)
    shutil.rmtree(folder)


@pytest.mark.parametrize("file", ["golden.json", "step-0000.safetensors"])
def test_a_link_to_itself_is_a_sentence(golden: Path, file: str) -> None:
    (golden / file).unlink()
    (golden / file).symlink_to(file)
    with pytest.raises(UsageError, match="Too many levels of symbolic links"):
        Golden.open(golden).read_step(0)


def test_what_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(strict.MalformedError, match="more than 4500000 values"):
        strict.parse(b'{"a": [' + b"[]," * 4_500_000 + b"1]}")


def test_a_value_is_shown_short_whatever_it_is() -> None:
    for value in ([[]] * 10**6, {str(i): 1 for i in range(10**5)}, "x" * 10**6, 10**9999):
        assert len(strict.shown(value)) <= 82


def test_a_step_that_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch, make_step: Make) -> None:
    monkeypatch.setattr(strict, "MAX_VALUES", 100)
    with pytest.raises(strict.MalformedError, match="observe fewer sites"):
        encode_step(make_step(0, sites=8))


def test_a_golden_cannot_ask_for_a_schedule_larger_than_memory() -> None:
    with pytest.raises(MalformedError, match="outside 0 to 1000000"):
        encode_manifest(Manifest(Provenance("reference", "torch", "tiny", {}, 0, 10**9)))


def test_a_password_in_a_models_url_goes_no_further() -> None:
    made = Manifest(Provenance("reference", "torch", "https://me:secret@host/m", {}, 0, 1))
    assert "secret" not in decode_manifest(encode_manifest(made), "golden.json").provenance.model
    document = json.loads(encode_manifest(made))
    document["provenance"]["model"] = "https://me:secret@host/m"  # of an older parity
    document["sha256"] = own_checksum(document)
    read = decode_manifest(json.dumps(document).encode(), "golden.json")
    assert read.provenance.model == "https://***@host/m"
