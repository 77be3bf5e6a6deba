"""`parity record` and `parity diff`: what is recorded on one machine and judged on another.

Recordings are shared by the module: one kept live run, and both sides recorded again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchax")

from parity.commands.parts.keep import KeepRun
from parity.commands.record import record as record_command
from parity.compare.diff import diff
from parity.compare.judge import align
from parity.compare.metrics import measure
from parity.compare.result import Result
from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, StepRecords, verify
from parity.golden.records import LOOP
from parity.models.registry import DEFAULT_MODEL
from parity.paths.worker.process import ProcessSide
from parity.runs.compare import run
from parity.runs.request import Request
from parity.settings import parse

pytestmark = pytest.mark.slow

PARITY = [sys.executable, "-m", "parity.cli"]
ONE_BLOCK = ["--sites", "transformer_blocks.0"]
"""Few sites: a step in a fifth of a second, where all blocks take several."""

MASK = "transformer_blocks.0.attn.attention"


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


def parts(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir()) if f.name.startswith(("step-", "before"))}


def content(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def record(where: str | Path, **options: Any) -> None:
    """`parity record` as the command line calls it, within this process: torch and jax are loaded once."""
    given = {
        "side": "reference", "setting": [], "model": DEFAULT_MODEL, "steps": 1, "seed": 0, "stage1": None,
        "prompt": None, "sites": "transformer_blocks.0", "values": [], "floors": "none", "resume": False,
        "overwrite": False,
    }  # fmt: skip
    record_command(**{**given, "where": str(where), **options})


def parity(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PARITY, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recordings")


@pytest.fixture(scope="module")
def kept(folder: Path) -> tuple[Path, Result]:
    """A live run with the mask dropped, kept: reference (with floors) and candidate, and its result."""
    request = Request(DEFAULT_MODEL, parse("torch", []), parse("torchax", ["attention.mask=none"]))
    sink = KeepRun(folder / "live", request)
    result = run(request, quiet, sink)
    sink.result(result)
    return folder / "live", result


@pytest.fixture(scope="module")
def reference(folder: Path) -> Path:
    """All blocks, with floors."""
    record(folder / "reference", sites="blocks", floors="default")
    return folder / "reference"


@pytest.fixture(scope="module")
def two_steps(folder: Path) -> Golden:
    """Of the reference, finished: what a recording that was stopped is made from."""
    record(folder / "two", steps=2)
    return Golden.open(folder / "two")


def stopped_after_one(golden: Golden, where: Path) -> dict[str, bytes]:
    """A recording that was stopped after its first step; returns its files."""
    GoldenWriter(where, golden.provenance).write_step(golden.read_step(0))
    return content(where)


@pytest.fixture(scope="module")
def candidate(folder: Path) -> Path:
    """All blocks, the mask dropped, recorded by a process of its own."""
    ran = parity("record", "candidate", "--side", "candidate", "--setting", "attention.mask=none", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ""
    return folder / "candidate"


def test_recorded_twice_is_the_same_bytes(kept: tuple[Path, Result], reference: Path, candidate: Path) -> None:
    live, _ = kept
    assert len(parts(reference)) == 1
    assert parts(reference) == parts(live / "reference")
    assert parts(candidate) == parts(live / "candidate")  # another process
    same = diff(reference, live / "reference")
    assert same.verdict == "pass"
    assert diff(candidate, live / "candidate").verdict == "pass"  # no floors, and none needed
    assert verify(reference) == verify(candidate) == []


def test_nothing_of_this_machine_is_in_a_recording(folder: Path, reference: Path, candidate: Path) -> None:
    words = [str(folder), str(Path.home()), str(Path(sys.prefix).parent), str(os.getpid())]
    for golden in (reference, candidate):
        held = Golden.open(golden)
        for word in words[:3]:
            assert not any(word.encode() in file for file in content(golden).values()), word
        assert str(os.getpid()) not in held.provenance.command
    assert Golden.open(candidate).provenance.command == (
        "parity record candidate --side candidate --setting attention.mask=none"
    )


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["record", "/data/me/run-7", "--stage1", "/me/e.safetensors"], "parity record run-7 --stage1 e.safetensors"),
        (["record", "run-7", "--stage1=/data/me/e.safetensors"], "parity record run-7 --stage1=e.safetensors"),
        (["record", "file:///data/me/run-7"], "parity record run-7"),
        (["record", "../../me/run-7", "--model", "~/me/hunyuan"], "parity record run-7 --model hunyuan"),
        (["record", "gs://bucket/run-7"], "parity record gs://bucket/run-7"),
        (["record", "s3://me:pw@host/run-7?token=x"], "parity record 's3://***@host/run-7?***'"),
        (["record", "runs/7", "--prompt", "a cat / a dog"], "parity record runs/7 --prompt 'a cat / a dog'"),
    ],
)  # fmt: skip
def test_the_command_is_kept_without_folders(words: list[str], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from parity.commands.record import command_line

    monkeypatch.setattr(sys, "argv", ["/opt/bin/parity", *words])
    assert command_line() == command


def test_a_dropped_mask_is_found_from_sketches_alone(
    kept: tuple[Path, Result], reference: Path, candidate: Path
) -> None:
    _, live = kept
    for golden in (reference, candidate):
        held = [r for r in Golden.open(golden).read_step(0).records if isinstance(r.value, np.ndarray)]
        assert {r.key.module for r in held} == {LOOP}  # the loop's own small values, of no module's
    ran = parity("diff", reference, candidate, "--json")
    assert ran.returncode == 1, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["verdict"], found["failed"]) == ("fail", "structure")
    assert found["differing_settings"] == [
        {"setting": "attention.mask", "reference": "exact", "candidate": "none"},
    ]
    assert live.verdict == "fail"
    assert live.origin is not None
    assert found["origin"]["site"] == live.origin.key.site
    assert found["origin"]["branch"] == live.origin.key.branch
    assert found["origin"]["birth"] == live.origin.birth == "module"
    assert live.origin.key.module == MASK


def test_sketches_estimate_the_true_distance_at_every_site(folder: Path, candidate: Path, reference: Path) -> None:
    names = Golden.open(reference).provenance.modules
    observed = [n for n in ["", *names] if n.count(".") == 0 or re.fullmatch(r"transformer_blocks\.\d+", n)]
    values = [*observed, "transformer_blocks.*.attention"]
    record(folder / "whole-reference", sites="blocks", values=values)
    record(folder / "whole-candidate", side="candidate", setting=["attention.mask=none"], sites="blocks", values=values)
    ours, theirs = (Golden.open(folder / f"whole-{side}").read_step(0) for side in ("reference", "candidate"))
    # Keeping values changes nothing of what is recorded beside them.
    assert [r.key for r in ours.records] == [r.key for r in Golden.open(reference).read_step(0).records]
    compared = apart = 0
    for pair in align(ours.records, theirs.records):
        assert pair.reference is not None
        assert pair.candidate is not None
        if pair.reference.kind != "tensor" or pair.key.is_padding:
            continue
        exact = measure(pair.reference, pair.candidate)
        estimated = measure(replace(pair.reference, value=None), replace(pair.candidate, value=None))
        assert isinstance(pair.reference.value, np.ndarray), pair.key
        assert isinstance(pair.candidate.value, np.ndarray), pair.key
        assert exact is not None
        assert estimated is not None
        if exact.scale == 0.0:
            assert exact.l2 == estimated.l2
            continue
        true, told = exact.l2 / exact.scale, estimated.l2 / estimated.scale
        compared += 1
        apart += true > 1e-3
        # Below 1e-6 the two are one rounding apart, and so is the sketch of their difference.
        assert abs(told - true) <= 0.1 * true + 1e-6, pair.key
    assert compared > 150
    assert apart > 50


def test_a_kept_run_is_not_written_over(kept: tuple[Path, Result]) -> None:
    live, _ = kept
    before = content(live / "reference")
    ran = parity("run", "--out", live)
    assert ran.returncode == 2
    assert f"'{live}' exists and is not an empty folder" in " ".join(ran.stderr.split())
    assert content(live / "reference") == before


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> Callable[[str], Path]:
    """Four steps without a break, by floors; the command is the one that the killed recordings are started with."""
    made: dict[str, Path] = {}

    def make(floors: str) -> Path:
        if floors not in made:
            where = folder / f"whole-{floors}"
            where.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(where)
                patch.setattr(sys, "argv", ["parity", *four_steps(floors)])  # the command is kept in the golden
                sites = four_steps(floors)[-1]
                record("golden", steps=4, floors=floors, sites=sites)
            made[floors] = where / "golden"
        return made[floors]

    return make


def four_steps(floors: str) -> list[str]:
    sites = ["--sites", "transformer_blocks.?"] if floors == "none" else ONE_BLOCK
    return ["record", "golden", "--steps", "4", "--floors", floors, *sites]


@pytest.mark.parametrize("floors", ["none", "fp64,rounding"])
def test_killed_and_resumed_is_as_if_never_killed(
    floors: str, tmp_path: Path, uninterrupted: Callable[[str], Path]
) -> None:
    golden = tmp_path / "golden"
    child = subprocess.Popen(
        [*PARITY, *four_steps(floors)], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with child:
        deadline = time.monotonic() + 300
        while not (golden / "step-0000.safetensors").exists():
            assert child.poll() is None, "the recording ended before its first step was seen"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
    held = Golden.open(golden)
    assert not held.complete
    # Killed after the part's rename, perhaps before golden.json lists it.
    assert 0 <= len(held.steps) < 4
    assert held.steps == tuple(range(len(held.steps)))
    whole = uninterrupted(floors)
    for step in held.steps:
        assert held.read_step(step).records
        name = f"step-{step:04d}.safetensors"
        assert (golden / name).read_bytes() == (whole / name).read_bytes()
    assert [p.file for p in verify(golden)] == ["golden.json"]
    ran = parity(*four_steps(floors), "--resume", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert f"{4 - len(held.steps)} steps written" in ran.stderr
    left = {name: file for name, file in content(golden).items() if not name.endswith(".tmp")}
    if not held.steps:  # nothing was listed, so the command of the resumed run is the golden's: only it may differ
        left["golden.json"] = content(whole)["golden.json"]
    assert left == content(whole)


def test_every_unfinished_state_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    """Whatever number of steps were finished, and on the candidate too, whose steps are compiled."""
    for side, floors in (("reference", "none"), ("candidate", "none"), ("reference", "fp64")):
        whole = tmp_path / f"{side}-{floors}"
        record(whole, side=side, steps=3, floors=floors)
        golden = Golden.open(whole)
        for done in (1, 2) if floors == "none" else (2,):
            where = tmp_path / f"{side}-{floors}-{done}"
            writer = GoldenWriter(where, golden.provenance)
            for step in range(done):
                writer.write_step(golden.read_step(step))
            record(where, side=side, steps=3, floors=floors, resume=True)
            assert content(where) == content(whole), (side, floors, done)


def test_a_feature_cache_is_filled_again_where_a_resumed_step_reads_it(tmp_path: Path) -> None:
    """Steps 1 and 3 skip blocks: what they add again was kept before the recording was stopped."""
    given: dict[str, Any] = {"steps": 4, "setting": ["cache=deepcache:1,3,2"], "floors": "none"}
    record(tmp_path / "whole", **given)
    golden = Golden.open(tmp_path / "whole")
    for done in (1, 2, 3):
        where = tmp_path / f"{done}"
        writer = GoldenWriter(where, golden.provenance)
        for step in range(done):
            writer.write_step(golden.read_step(step))
        record(where, **given, resume=True)
        assert content(where) == content(tmp_path / "whole"), done


@pytest.mark.parametrize("floors", ["none", "rounding"])
def test_resuming_what_is_finished_computes_and_writes_nothing(
    floors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "g", steps=2, floors=floors)
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "g").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(ProcessSide, "observe", lambda *_, **__: pytest.fail("a step was computed"))
        record(tmp_path / "g", steps=2, floors=floors, resume=True)
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "g").iterdir()} == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"setting": ["attention.mask=none"]}, r"settings\[attention.mask\]: 'exact' and 'none'"),
        ({"seed": 1}, "seed: 0 and 1"),
        ({"steps": 3}, "steps: 2 and 3"),
        ({"prompt": "another"}, r"inputs\[cond\."),
        ({"side": "candidate"}, "side: 'reference' and 'candidate'"),
    ],
)
def test_another_run_is_not_resumed(two_steps: Golden, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    before = stopped_after_one(two_steps, tmp_path / "g")
    with pytest.raises(UsageError, match=f"cannot resume, this is another run.*{said}") as raised:
        record(tmp_path / "g", **{"steps": 2, "resume": True, **options})
    assert raised.value.exit_code == 2
    assert content(tmp_path / "g") == before


@pytest.mark.parametrize("options", [{"sites": "transformer_blocks.1"}, {"values": ["transformer_blocks.0"]},
                                     {"floors": "rounding"}])  # fmt: skip
def test_a_recording_of_other_sites_is_not_resumed(two_steps: Golden, tmp_path: Path, options: dict[str, Any]) -> None:
    """One golden has one choice of sites, values and floors: its steps must be alike."""
    before = stopped_after_one(two_steps, tmp_path / "g")
    with pytest.raises(UsageError, match="cannot resume"):
        record(tmp_path / "g", **{"steps": 2, "resume": True, **options})
    assert content(tmp_path / "g") == before


def test_a_golden_that_is_there_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "g")
    before = content(tmp_path / "g")
    with monkeypatch.context() as patch:
        patch.setattr(ProcessSide, "observe", lambda *_, **__: pytest.fail("a step was computed"))
        with pytest.raises(UsageError, match=r"there is a golden here already; .*--resume.*--overwrite") as raised:
            record(tmp_path / "g")
    assert raised.value.exit_code == 2
    assert content(tmp_path / "g") == before
    with pytest.raises(UsageError, match="exclude each other"):
        record(tmp_path / "g", resume=True, overwrite=True)
    record(tmp_path / "g", overwrite=True, seed=1)
    assert Golden.open(tmp_path / "g").provenance.seed == 1


def test_memory_does_not_grow_with_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a step's records are made, those of the step before it are gone."""
    import gc
    import weakref

    alive: list[weakref.ref[Any]] = []
    most = 0
    real = ProcessSide.observe

    def watched(*arguments: Any, **options: Any) -> Iterator[StepRecords]:
        nonlocal most
        for step in real(*arguments, **options):
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))
            alive.extend(weakref.ref(r.sketch) for r in step.records if r.sketch is not None)
            yield step
            del step

    monkeypatch.setattr(ProcessSide, "observe", watched)
    record(tmp_path / "g", steps=5)
    each = len(alive) // 5
    assert each > 10
    assert most <= each  # the step that is being written, and no earlier one
    assert Golden.open(tmp_path / "g").steps == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"side": "middle"}, "--side takes reference, candidate"),
        ({"steps": 0}, "--steps must be at least 1"),
        ({"floors": "fp32"}, "--floors takes none or fp64, rounding"),
        ({"side": "candidate", "floors": "fp64"}, "measured on the reference"),
        ({"sites": "transfomer_blocks.0"}, "no module matches the site"),
    ],
)
def test_wrong_usage_leaves_nothing_behind(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        record(tmp_path / "g", **options)
    assert not (tmp_path / "g").exists()


def test_recorded_to_a_bucket_and_diffed_from_it(bucket: str, tmp_path: Path) -> None:
    ran = parity("record", f"{bucket}/reference", "--steps", "2", *ONE_BLOCK, "--floors", "rounding")
    assert ran.returncode == 0, ran.stderr
    assert f"2 steps written to {bucket}/reference" in " ".join(ran.stderr.split())
    record(tmp_path / "local", steps=2, floors="rounding")
    record(f"{bucket}/dropped", steps=2, setting=["attention.mask=none"])
    assert parity("diff", f"{bucket}/reference", tmp_path / "local").returncode == 0
    failed = parity("diff", f"{bucket}/reference", f"{bucket}/dropped", "--json")
    assert failed.returncode == 1, failed.stderr
    assert {d["step"] for d in json.loads(failed.stdout)["steps"]} == {0, 1}
    shown = parity("inspect", f"{bucket}/reference", "--verify")
    assert shown.returncode == 0
    assert "verified: every part is whole" in shown.stdout
