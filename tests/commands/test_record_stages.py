"""`parity record --stages`: encoders and decoder in goldens at step -1, and the diff that judges them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchax")

from parity.commands.record import record as record_command
from parity.compare.diff import diff
from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, StepRecords, verify
from parity.golden.records import Record
from parity.runs.recording.stages import Chain

pytestmark = pytest.mark.slow

COG = "tiny-cogvideox-1.5"
ALL = "text,transformer,vae"


def record(where: Path, **options: Any) -> None:
    given = {
        "side": "reference", "setting": [], "model": COG, "steps": 1, "seed": 0, "stage1": None, "prompt": None,
        "sites": "none", "values": [], "floors": "none", "resume": False, "overwrite": False, "stages": ALL,
    }  # fmt: skip
    record_command(**{**given, "where": str(where), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Path:
    """With floors; the loop's values and the stages' outputs alone."""
    record(folder / "reference", floors="default", stage1_out=folder / "stage1.safetensors")
    return folder / "reference"


def test_a_golden_holds_the_stages_with_their_floors(reference: Path) -> None:
    golden = Golden.open(reference)
    assert (golden.steps, golden.complete, verify(reference)) == ((-1, 0), True, [])
    held = golden.read_step(-1)
    assert [(r.key.stage, r.key.branch, r.key.site) for r in held.records] == [
        ("text", "cond", "loop:prompt_embeds"),
        ("text", "uncond", "loop:prompt_embeds"),
        ("vae", "", "loop:frames"),
        ("vae", "", "loop:frames@read"),
    ]
    assert {r.key for r in held.records} == set(held.floors)
    frames = held.records[-2]
    assert frames.value is None  # a video is held as its sketch
    assert held.records[-1].value is None
    assert frames.moments is not None
    # The floor of the frames is that of the whole chain: an order above that of one decode.
    assert 3e-6 < held.floors[frames.key].l2 / frames.moments.l2 < 1e-3
    told = golden.provenance
    assert {n for n in told.inputs if "input_ids" in n} == {
        "cond.text_encoder.input_ids", "uncond.text_encoder.input_ids"
    }  # fmt: skip
    assert not any("hidden_states" in n for n in told.inputs)
    assert {n.split(".")[0] for n in told.weights} >= {"text", "vae", "transformer_blocks"}


def test_the_candidate_agrees_stage_by_stage_and_a_fault_is_placed_in_its_stage(folder: Path, reference: Path) -> None:
    record(folder / "candidate", side="candidate")
    same = diff(reference, folder / "candidate")
    assert same.verdict == "pass", same.reason
    text, vae = same.stages
    assert (text.stage, text.verdict, vae.stage, vae.verdict) == ("text", "pass", "vae", "pass")
    assert 0 < text.by_itself.rel_l2 < 1e-5
    assert 0 < vae.in_chain.ratio < 3
    # What is wrong in the loop is wrong in the frames too; it is born in the loop.
    faulty = changed(folder / "candidate", folder / "loop", 0, "loop:latents.after")
    changed(folder / "loop", folder / "both", -1, "loop:frames")
    found = diff(reference, faulty.parent / "both")
    assert found.verdict == "fail"
    assert found.origin is not None
    assert found.origin.key.stage == "transformer"
    assert [s.verdict for s in found.stages] == ["pass", "fail"]
    (frames,) = (d for d in found.sites if d.key.site == "loop:frames")
    assert frames.birth == "amplified"
    encoded = diff(reference, changed(folder / "candidate", folder / "text", -1, "loop:prompt_embeds"))
    assert encoded.verdict == "fail"
    assert encoded.origin is not None
    assert (encoded.origin.key.stage, encoded.origin.key.branch) == ("text", "cond")
    assert [s.verdict for s in encoded.stages] == ["fail", "pass"]


def changed(golden: Path, to: Path, step: int, site: str) -> Path:
    """A copy of a golden in which the values of a site, and what is read of it, are 1 % larger."""

    def louder(r: Record) -> Record:
        if r.key.site.removesuffix("@read") != site or r.sketch is None:
            return r
        value = r.value * np.float32(1.01) if isinstance(r.value, np.ndarray) else r.value
        return replace(r, sketch=r.sketch * np.float32(1.01), value=value)

    held = Golden.open(golden)
    with GoldenWriter(to, held.provenance) as writer:
        for n in held.steps:
            records = held.read_step(n)
            if n == step:
                records = StepRecords(n, tuple(louder(r) for r in records.records), records.floors)
            writer.write_step(records)
    return to


def test_embeddings_written_are_those_that_were_used(folder: Path, reference: Path) -> None:
    del reference
    record(folder / "again", stage1=folder / "stage1.safetensors", stages=None)
    ours, theirs = (Golden.open(folder / name).read_step(0) for name in ("reference", "again"))
    assert [r.moments for r in ours.records] == [r.moments for r in theirs.records]


@pytest.mark.parametrize("stages", [ALL, "transformer,vae"])
def test_a_recording_killed_before_its_stages_resumes_to_the_same_bytes(
    stages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "whole", stages=stages)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(Chain, "decode", killed)
        with pytest.raises(KeyboardInterrupt):
            record(tmp_path / "g", stages=stages)
    assert (Golden.open(tmp_path / "g").steps, Golden.open(tmp_path / "g").complete) == ((0,), False)
    record(tmp_path / "g", stages=stages, resume=True)
    for file in sorted(f.name for f in (tmp_path / "whole").iterdir()):
        assert (tmp_path / "g" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
    shutil.copytree(tmp_path / "g", tmp_path / "twice")
    record(tmp_path / "twice", stages=stages, resume=True)
    assert (tmp_path / "twice" / "before.safetensors").read_bytes() == (tmp_path / "g/before.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "vae"}, "must name the transformer"),
        ({"stages": "text,transformer", "stage1": Path("file")}, "leave --stage1 or text out"),
    ],
)
def test_what_cannot_be_recorded_is_refused_at_once(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        record(tmp_path / "g", **options)


def test_two_encoders_whose_top_modules_share_a_name_are_both_recorded(folder: Path) -> None:
    where = folder / "two"
    record(where, model="tiny-hunyuan-video-1.5", stages="text,transformer", sites="blocks")
    top = [r.key for r in Golden.open(where).read_step(-1).records if r.key.site == ":in.input_ids"]
    assert [(key.branch, key.call) for key in top] == [("cond", 0), ("uncond", 0), ("cond", 1)]
    assert verify(where) == []
