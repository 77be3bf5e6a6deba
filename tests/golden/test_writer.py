"""Recording: what may be written where, resuming, stable bytes, and memory that does not grow."""

from __future__ import annotations

import dataclasses
import json
import statistics
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, Key, Moments, Provenance, Record, StepRecords
from parity.golden.sketch import EXACT

Make = Callable[..., StepRecords]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def record(folder: Path, provenance: Provenance, make_step: Make, steps: tuple[int, ...] = (-1, 0, 1)) -> None:
    with GoldenWriter(folder, provenance) as writer:
        for step in steps:
            writer.write_step(make_step(step))


def test_the_same_run_recorded_twice_gives_the_same_bytes(
    tmp_path: Path, provenance: Provenance, make_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "a", provenance, make_step)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    record(Path("another name"), provenance, make_step)
    assert contents(tmp_path / "a") == contents(tmp_path / "elsewhere" / "another name")


def test_the_order_of_steps_does_not_matter(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    record(tmp_path / "a", provenance, make_step, (-1, 0, 1))
    record(tmp_path / "b", provenance, make_step, (1, -1, 0))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_nothing_of_the_machine_is_in_the_files(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    record(tmp_path / "a", provenance, make_step)
    for content in contents(tmp_path / "a").values():
        assert str(tmp_path).encode() not in content


def test_a_golden_that_is_there_is_not_touched(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    record(tmp_path, provenance, make_step)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"there is a golden here already.*--resume.*--overwrite"):
        GoldenWriter(tmp_path, provenance)
    with pytest.raises(UsageError, match="choose one"):
        GoldenWriter(tmp_path, provenance, resume=True, overwrite=True)
    assert contents(tmp_path) == before


def test_overwriting_leaves_nothing_of_the_old_golden_and_nothing_else_out(
    tmp_path: Path, provenance: Provenance, make_step: Make
) -> None:
    record(tmp_path / "a", provenance, make_step, (-1, 0, 1, 12345))
    (tmp_path / "a" / "notes.txt").write_text("mine")
    (tmp_path / "a" / ".step-0003.safetensors.tmp").write_text("of a killed run")
    with GoldenWriter(tmp_path / "a", provenance, overwrite=True) as writer:
        assert writer.steps_done == ()
        writer.write_step(make_step(0))
        assert sorted(contents(tmp_path / "a")) == ["golden.json", "notes.txt", "step-0000.safetensors"]
    assert Golden.open(tmp_path / "a").steps == (0,)


def test_a_run_that_fails_before_its_first_step_overwrites_nothing(
    tmp_path: Path, provenance: Provenance, make_step: Make
) -> None:
    record(tmp_path, provenance, make_step)
    before = contents(tmp_path)
    with pytest.raises(RuntimeError), GoldenWriter(tmp_path, provenance, overwrite=True):
        raise RuntimeError("the model does not load")
    assert contents(tmp_path) == before


def test_overwriting_a_damaged_golden(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    (tmp_path / "golden.json").write_text("{")
    with GoldenWriter(tmp_path, provenance, overwrite=True) as writer:
        writer.write_step(make_step(0))
    assert Golden.open(tmp_path).read_step(0).records


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    (tmp_path / "step-0009.safetensors").write_text("not listed anywhere, but not ours to remove")
    record(tmp_path, provenance, make_step)
    assert (tmp_path / "step-0009.safetensors").exists()
    assert Golden.open(tmp_path).steps == (-1, 0, 1)


def test_a_step_is_written_once(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    writer = GoldenWriter(tmp_path, provenance)
    writer.write_step(make_step(0))
    with pytest.raises(UsageError, match="step 0 is recorded already"):
        writer.write_step(make_step(0))


def test_an_exception_leaves_an_incomplete_golden_that_can_be_resumed(
    tmp_path: Path, provenance: Provenance, make_step: Make
) -> None:
    def interrupted() -> None:
        with GoldenWriter(tmp_path / "a", provenance) as writer:
            writer.write_step(make_step(-1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    golden = Golden.open(tmp_path / "a")
    assert (golden.complete, golden.steps) == (False, (-1,))
    resumed = dataclasses.replace(provenance, command="parity record --resume")
    with GoldenWriter(tmp_path / "a", resumed, resume=True) as writer:
        assert writer.steps_done == (-1,)
        writer.write_step(make_step(0))
        writer.write_step(make_step(1))
    record(tmp_path / "b", provenance, make_step)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_resuming_where_nothing_is_begins(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    with GoldenWriter(tmp_path / "a", provenance, resume=True) as writer:
        writer.write_step(make_step(0))
    assert Golden.open(tmp_path / "a").complete


def test_a_finished_golden_stays_finished_until_a_step_is_added(
    tmp_path: Path, provenance: Provenance, make_step: Make
) -> None:
    record(tmp_path, provenance, make_step)
    writer = GoldenWriter(tmp_path, provenance, resume=True)
    assert Golden.open(tmp_path).complete
    writer.write_step(make_step(2))
    assert not Golden.open(tmp_path).complete


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"settings": {"dtype": "bfloat16", "attention.mask": "exact"}},
            r"settings\[dtype\]: 'float32' and 'bfloat16'",
        ),
        ({"settings": {"dtype": "float32"}}, r"settings\[attention.mask\]: 'exact' and None"),
        ({"weights": {"proj.weight": "0" * 16}}, r"weights\[proj.weight\]"),
        ({"inputs": {}}, r"inputs\[latents\]"),
        ({"seed": 8}, "seed: 7 and 8"),
        ({"model": "tiny-cogvideox-1.0"}, "model"),
        ({"steps": 4}, "steps: 3 and 4"),
        ({"shard": (1, 2)}, "shard"),
    ],
)
def test_another_run_cannot_resume(
    tmp_path: Path, provenance: Provenance, make_step: Make, change: dict[str, object], said: str
) -> None:
    record(tmp_path, provenance, make_step)
    with pytest.raises(UsageError, match=f"another run.*{said}"):
        GoldenWriter(tmp_path, dataclasses.replace(provenance, **change), resume=True)  # type: ignore[arg-type]


def test_a_damaged_part_is_noticed_when_resuming(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    record(tmp_path, provenance, make_step)
    part = tmp_path / "step-0000.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(UsageError, match=r"step-0000.safetensors.*checksum"):
        GoldenWriter(tmp_path, provenance, resume=True)


def test_provenance_that_cannot_be_read_again_is_not_written(tmp_path: Path, provenance: Provenance) -> None:
    with pytest.raises(UsageError, match=r"golden.json: cannot be written: provenance.seed"):
        GoldenWriter(tmp_path, dataclasses.replace(provenance, seed=1.5))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_no_folder_is_an_error_that_says_so(tmp_path: Path, provenance: Provenance) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file: it is a file, and a golden is a folder"):
        GoldenWriter(tmp_path / "file", provenance)


def test_memory_does_not_grow_with_steps(tmp_path: Path, provenance: Provenance) -> None:
    """2,000 sites a step; what the writer itself takes is measured, and the same sketch serves all of them."""
    held = np.random.default_rng(0).standard_normal(EXACT).astype(np.float32)
    value = np.zeros((512, 1024), np.float32)
    moments = Moments(8192, 0, 0, -1.0, 1.0, 0.0, 90.0)

    def records(step: int) -> StepRecords:
        sites = [
            Record(Key("transformer", step, "cond", f"b.{i}:out"), "tensor", (64, 128), "float32", "", (64, 128),
                   moments, held)
            for i in range(2000)
        ]  # fmt: skip
        sites.append(
            Record(Key("transformer", step, "", "v"), "tensor", value.shape, "float32", value=value.T.copy().T)
        )
        return StepRecords(step, tuple(sites))

    peaks, left = [], []
    with GoldenWriter(tmp_path, provenance) as writer:
        for index in range(5):
            step = records(index)
            tracemalloc.start()
            writer.write_step(step)
            after, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            peaks.append(peak)
            left.append(after)
    megabyte = 2**20
    part = (tmp_path / "step-0000.safetensors").stat().st_size
    assert part > 17 * megabyte
    assert peaks[0] < part / 2  # the part itself is never held: names and one block are
    # Other threads of the test session may allocate meanwhile, hence the megabyte and the median.
    assert max(peaks[1:]) < peaks[0] + megabyte
    assert statistics.median(left) < 0.1 * megabyte


def test_the_manifest_grows_by_parts_only(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    record(tmp_path, provenance, lambda step: make_step(step, sites=50), (0, 1, 2))
    parts = json.loads((tmp_path / "golden.json").read_text())["parts"]
    assert [len(json.dumps(part)) < 300 for part in parts] == [True] * 3
