"""`parity record`: recorded on one machine and judged on another; stopped, resumed, refused; with its stages."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchax")

from parity.commands.record import command_line
from parity.compare.diff import diff
from parity.golden import Golden, GoldenWriter, verify
from parity.paths.worker.process import ProcessSide
from parity.records import LOOP, Record
from tests.support.cli import Ran, cli
from tests.support.made import copied, scaled

slow = pytest.mark.slow

MASK = "attention.mask=none"
SMALL = ("--model", "tiny-cogvideox-1.0", "--sites", "transformer_blocks.0")
STAGES = ("--model", "tiny-cogvideox-1.5", "--sites", "none", "--stages", "text,transformer,vae")


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def record(where: Path | str, *options: object, code: int = 0) -> Ran:
    return cli("record", where, *SMALL, *options, code=code)


def stopped(golden: Golden, where: Path, steps: int = 1) -> dict[str, bytes]:
    """A recording that was stopped after some steps; returns its files."""
    writer = GoldenWriter(where, golden.provenance)
    for step in range(steps):
        writer.write_step(golden.read_step(step))
    return content(where)


@pytest.fixture
def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessSide, "observe", lambda *_, **__: pytest.fail("a step was computed"))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["run-7", "--inputs=/data/me/e.safetensors"], "parity record run-7 --inputs=e.safetensors"),
        (["file:///data/me/run-7"], "parity record run-7"),
        (["s3://me:pw@host/run-7?token=x"], "parity record 's3://***@host/run-7?***'"),
        (["runs/7", "--prompt", "a cat / a dog"], "parity record runs/7 --prompt 'a cat / a dog'"),
    ],
)
def test_the_command_is_kept_without_folders(words: list[str], command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/parity", "record", *words])
    assert command_line() == command


@slow
@pytest.mark.timeout(600)
def test_both_sides_recorded_are_what_a_run_keeps_and_a_dropped_mask_is_found(tmp_path: Path) -> None:
    live = cli("run", "--candidate", MASK, "--out", tmp_path / "live", "--format", "json", code=1).json
    reference, candidate = tmp_path / "reference", tmp_path / "candidate"
    cli("record", reference, code=0)
    assert cli("record", candidate, "--side", "candidate", "--candidate", MASK, code=0).out == ""
    for golden in (reference, candidate):
        parts = {name: held for name, held in content(golden).items() if name.startswith("step-")}
        assert parts == {name: content(tmp_path / "live" / golden.name)[name] for name in parts}
        assert verify(golden) == []
        for word in (str(tmp_path), str(Path.home()), str(Path(sys.prefix).parent)):
            assert not any(word.encode() in held for held in content(golden).values()), word
        held = [r for r in Golden.open(golden).read_step(0).records if isinstance(r.value, np.ndarray)]
        assert {r.key.module for r in held} == {LOOP}, "sketches of all others"
    found = cli("diff", reference, candidate, "--format", "json", code=1).json
    assert found["differing_settings"] == [{"setting": "attention.mask", "reference": "exact", "candidate": "none"}]
    assert found["origin"] == live["origin"]
    assert found["origin"]["site"].startswith("transformer_blocks.0.attn.attention:out")
    assert found["origin"]["introduced"] == "module"
    assert "exists and is not an empty folder" in cli("run", "--out", tmp_path / "live", code=2).err


@slow
def test_every_unfinished_state_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    options = ("--reference", "cache=deepcache:1,2,2", "--floors", "none")  # what skipped steps add was kept before
    record(tmp_path / "whole", *options, "--steps", 3)
    for steps in (1, 2):
        stopped(Golden.open(tmp_path / "whole"), tmp_path / str(steps), steps)
        record(tmp_path / str(steps), *options, "--steps", 3, "--resume")
        assert content(tmp_path / str(steps)) == content(tmp_path / "whole"), steps


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps without floors, finished."""
    where = tmp_path_factory.mktemp("two") / "golden"
    record(where, "--steps", 2, "--floors", "none")
    return where


def test_what_is_finished_is_neither_computed_nor_written_again(two: Path, no_step: None) -> None:
    before = {file: file.stat().st_mtime_ns for file in two.iterdir()}
    record(two, "--steps", 2, "--floors", "none", "--resume")
    said = record(two, code=2).said
    assert "there is a golden here already" in said
    assert {file: file.stat().st_mtime_ns for file in two.iterdir()} == before


@slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--reference dtype=bfloat16", "settings[dtype]: 'float32' and 'bfloat16'"),
        ("--seed 1", "seed: 0 and 1"),
        ("--prompt another", "inputs[cond."),
        ("--sites transformer_blocks.1", ""),
        ("--floors measured", ""),
    ],
)
def test_another_run_is_not_resumed(two: Path, tmp_path: Path, words: str, said: str) -> None:
    before = stopped(Golden.open(two), tmp_path / "g")
    given = ["--steps", 2, "--floors", "none", "--resume", *words.split()]
    told = record(tmp_path / "g", *given, code=2).said
    assert "cannot resume" in told
    assert said in told
    assert content(tmp_path / "g") == before


def test_a_site_that_no_module_has_leaves_nothing_behind(tmp_path: Path) -> None:
    assert "no module matches the site" in record(tmp_path / "g", "--sites", "transfomer_blocks.0", code=2).said
    assert not (tmp_path / "g").exists()


# --- the stages outside the loop


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`reference`, with floors, and `candidate`: the loop's values and the stages' outputs alone."""
    folder = tmp_path_factory.mktemp("stages")
    cli("record", "reference", *STAGES, cwd=folder, code=0)
    cli("record", "candidate", *STAGES, "--side", "candidate", "--floors", "none", cwd=folder, code=0)
    return folder


@slow
def test_a_golden_holds_the_stages_with_their_floors(staged: Path) -> None:
    golden = Golden.open(staged / "reference")
    assert (golden.steps, golden.complete, verify(staged / "reference")) == ((-1, 0), True, [])
    held = golden.read_step(-1)
    assert [(r.key.stage, r.key.branch, r.key.site) for r in held.records] == [
        ("text", "cond", "loop:prompt_embeds"),
        ("text", "uncond", "loop:prompt_embeds"),
        ("vae", "", "loop:frames"),
        ("vae", "", "loop:frames@read"),
    ]
    assert {r.key for r in held.records} == set(held.floors)
    frames = held.records[-2]
    assert (frames.value, held.records[-1].value) == (None, None)  # a video is held as its sketch
    assert frames.moments is not None
    # The floor of the frames is that of the whole chain: an order above that of one decode.
    assert 3e-6 < held.floors[frames.key].l2 / frames.moments.l2 < 1e-3
    weights = {name.split(".")[0] for name in golden.provenance.weights}
    assert weights >= {"text", "vae", "transformer_blocks"}


@slow
@pytest.mark.parametrize(
    ("sites", "stage", "stages"),
    [
        ((), "", ["pass", "pass"]),
        (("loop:latents.after", "loop:frames"), "transformer", ["pass", "fail"]),
        (("loop:prompt_embeds",), "text", ["fail", "pass"]),
    ],
)
def test_stage_of_a_fault(staged: Path, tmp_path: Path, sites: tuple[str, ...], stage: str, stages: list[str]) -> None:
    def louder(record: Record) -> Record:
        return scaled(record, 1.01) if record.key.site.removesuffix("@read") in sites else record

    found = diff(staged / "reference", copied(staged / "candidate", tmp_path / "changed", louder))
    assert (found.verdict, "" if found.origin is None else found.origin.key.stage) == (
        "fail" if stage else "pass",
        stage,
    )
    assert [s.verdict for s in found.stages] == stages
