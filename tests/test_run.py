"""`parity run`, end to end: the verdicts, the contract of its output, and what bad input is told."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch

from parity import cli
from parity.golden import Golden, verify
from parity.models.hunyuan_video_15.family import HunyuanVideo15
from parity.models.registry import DEFAULT_MODEL
from parity.models.stage2 import read_stage2
from parity.paths.loaded import Loaded
from parity.runs.request import Request
from parity.settings import parse
from tests.faulty import run as run_in_process
from tests.paths.sides import inputs, tiny

pytestmark = pytest.mark.slow

FIRST_ATTENTION = "transformer_blocks.0.attn.attention"
SLACK = 3.0
"""Floors that a passing site may be apart."""

KEYS = {
    "format", "verdict", "failed", "reason", "model", "differing_settings", "preflight", "steps", "sites", "origin",
    "causes",
}  # fmt: skip
STEP_KEYS = {"step", "timestep", "noise_pred", "latents"}
SITE_KEYS = {"stage", "step", "branch", "site", "rel_l2", "floor", "ratio", "local_rel_l2", "birth", "verdict"}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @functools.cached_property
    def json(self) -> dict[str, Any]:
        """stdout, which must be one JSON document and nothing else."""
        document: dict[str, Any] = json.loads(self.out, parse_constant=_refuse)
        return document


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON number")


def parity(*arguments: str) -> Done:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["parity", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        cli.main()
    code = ended.value.code
    return Done(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def run() -> Run:
    """`parity run --json` with these candidate settings and options, each combination run once."""

    @functools.cache
    def once(*candidate: str, options: tuple[str, ...] = ("--steps", "1")) -> Done:
        settings = [x for c in candidate for x in ("--candidate", c)]
        return parity("run", "--json", *options, *settings)

    return once


def outputs(document: dict[str, Any]) -> list[float]:
    """The ratios of noise_pred and latents at each step."""
    return [step[name]["ratio"] for step in document["steps"] for name in ("noise_pred", "latents")]


def sites(document: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [s for s in document["sites"] if all(s[k] == v for k, v in wanted.items())]


# --- the verdicts ----------------------------------------------------------------------------------------------


def test_both_paths_at_their_defaults_agree_in_float32(run: Run) -> None:
    done = run()
    assert (done.code, done.json["verdict"], done.json["failed"]) == (0, "pass", None)
    assert done.json["origin"] is None
    assert done.json["differing_settings"] == []
    (step,) = done.json["steps"]
    assert 0 < step["noise_pred"]["rel_l2"] < 1e-5  # two programs: agreement to the last bit would be suspicious
    assert max(outputs(done.json)) < SLACK
    assert {c["verdict"] for c in done.json["preflight"]} == {"pass"}
    assert len(done.json["preflight"]) > 8


def test_every_branch_and_block_was_compared(run: Run) -> None:
    document = run().json
    for branch in ("cond", "uncond"):
        for block in range(4):
            found = sites(document, branch=branch, site=f"transformer_blocks.{block}:out.0")
            assert len(found) == 1
            assert found[0]["verdict"] == "pass"
            assert 0 < found[0]["rel_l2"] < 1e-5
            assert found[0]["floor"] > 0


@pytest.mark.parametrize("mask", ["none", "zero_kv"])
def test_a_lost_mask_is_born_at_the_first_joint_attention(run: Run, mask: str) -> None:
    done = run(f"attention.mask={mask}")
    assert (done.code, done.json["verdict"], done.json["failed"]) == (1, "fail", "structure")
    origin = done.json["origin"]
    assert (origin["stage"], origin["step"], origin["branch"]) == ("transformer", 0, "cond")
    assert origin["site"].split(":")[0] == FIRST_ATTENTION
    assert origin["site"].split(":")[1].startswith("out")
    assert origin["birth"] == "module"
    assert min(outputs(done.json)) > SLACK
    assert done.json["differing_settings"] == [{"setting": "attention.mask", "reference": "exact", "candidate": mask}]


def test_the_queries_keys_and_values_of_the_lost_mask_agree(run: Run) -> None:
    document = run("attention.mask=none").json
    given = [
        s for s in document["sites"] if s["site"].startswith(f"{FIRST_ATTENTION}:in.") and "@padding" not in s["site"]
    ]
    assert {s["site"].split(":in.")[1].split("@")[0] for s in given} == {"query", "key", "value"}
    assert {s["verdict"] for s in given} == {"pass"}
    before = document["sites"][: document["sites"].index(given[0])]
    assert {s["verdict"] for s in before} <= {"pass", "apart"}


def test_both_branches_show_the_lost_mask(run: Run) -> None:
    document = run("attention.mask=none").json
    for branch in ("cond", "uncond"):
        births = [s for s in document["sites"] if s["branch"] == branch and s["birth"] == "module"]
        assert births[0]["site"].split(":")[0] == FIRST_ATTENTION


def test_the_first_rows_ids_fail_the_other_branch_alone(run: Run) -> None:
    done = run("attention.kernel=splash", "attention.mask=segment_ids_first_row")
    assert (done.code, done.json["verdict"]) == (1, "fail")
    origin = done.json["origin"]
    assert (origin["branch"], origin["site"].split(":")[0], origin["birth"]) == ("uncond", FIRST_ATTENTION, "module")
    assert "segment_ids_first_row" in str(done.json["differing_settings"])
    assert {s["verdict"] for s in sites(done.json, branch="cond")} <= {"pass", "apart", "harmless"}


@pytest.mark.parametrize(
    ("setting", "reference", "candidate"),
    [
        ("attention.kernel", "flex", "splash"),
        ("attention.mask", "exact", "zero_kv_rescaled"),
        ("text.reorder", "valid_first", "concatenate"),
        ("vision_states", "zeros", "none"),
    ],
)
def test_a_harmless_difference_passes_and_is_named(run: Run, setting: str, reference: str, candidate: str) -> None:
    done = run(f"{setting}={candidate}")
    assert (done.code, done.json["verdict"]) == (0, "pass")
    assert done.json["origin"] is None
    assert done.json["differing_settings"] == [{"setting": setting, "reference": reference, "candidate": candidate}]
    assert max(outputs(done.json)) < SLACK
    assert done.json["steps"][0]["noise_pred"]["rel_l2"] < 1e-5
    (said,) = [note for note in done.json["notes"] if note.startswith("harmless")]
    assert setting in said
    assert not sites(done.json, verdict="fail")


def test_absent_vision_states_are_harmless_where_they_differ(run: Run) -> None:
    document = run("vision_states=none").json
    found = sites(document, verdict="harmless")
    assert found
    modules = {s["site"].split(":")[0].split(".")[0] for s in found}
    assert modules <= {"", "image_embedder", "cond_type_embed"}


def test_byt5_in_bfloat16_is_below_the_floor(run: Run) -> None:
    """The historical misdiagnosis: it shows in float32, and costs a tenth of what bfloat16 costs anyway."""
    done = run("text.byt5_dtype=bfloat16")
    assert (done.code, done.json["verdict"]) == (0, "pass")
    (step,) = done.json["steps"]
    assert 1e-3 < step["noise_pred"]["rel_l2"] < 1e-2  # it is seen,
    assert step["noise_pred"]["floor"] > 3 * step["noise_pred"]["rel_l2"]  # and by how much it is below
    (said,) = [note for note in done.json["notes"] if "text.byt5_dtype" in note]
    assert "below the floor" in said
    assert f"{step['noise_pred']['rel_l2']:.2e}" in said
    assert rounds(done) == {"structure": "pass", "precision": "pass"}


def rounds(done: Done) -> dict[str, str]:
    return {r["round"]: r["verdict"] for r in done.json["rounds"]}


def test_bfloat16_against_bfloat16_passes_three_ways() -> None:
    done = parity("run", "--json", "--reference", "dtype=bfloat16", "--candidate", "dtype=bfloat16")
    assert (done.code, rounds(done)) == (0, {"structure": "pass", "precision": "pass"})
    exact, rounded = (r["steps"][0] for r in done.json["rounds"])
    assert (exact["bits_of"], rounded["bits_of"]) == (24, 8)
    assert exact["bits"] > 16 > 8 > rounded["bits"] > 3
    assert exact["noise_pred"]["rel_l2"] < 1e-5
    assert 0.5 < rounded["noise_pred"]["ratio"] < 2  # no further from the truth than the reference is
    given = {s["site"]: s["dtypes"] for s in sites(done.json, branch="cond")}
    assert given["transformer_blocks.0:out.0"] == ["bfloat16", "bfloat16"]  # the reference as given, not the truth


def test_bfloat16_against_float32_is_told_apart_from_a_fault(run: Run) -> None:
    done = run("dtype=bfloat16")
    assert (done.code, rounds(done)) == (0, {"structure": "pass", "precision": "pass"})
    (step,) = done.json["steps"]
    assert step["noise_pred"]["rel_l2"] > 1e-2
    assert 0.5 < step["noise_pred"]["ratio"] < 2


def test_a_fault_under_bfloat16_fails_the_structure_round() -> None:
    options = ("--reference", "dtype=bfloat16", "--candidate", "dtype=bfloat16")
    done = parity("run", "--json", *options, "--candidate", "attention.mask=zero_kv")
    assert (done.code, done.json["failed"], rounds(done)) == (1, "structure", {"structure": "fail"})
    assert done.json["origin"]["site"].split(":")[0] == FIRST_ATTENTION


def test_a_single_quantity_in_bfloat16_fails_the_precision_round_alone(run: Run) -> None:
    done = run("rope_dtype=bfloat16")
    assert (done.code, done.json["failed"]) == (1, "precision")
    assert rounds(done) == {"structure": "pass", "precision": "fail"}
    assert done.json["origin"]["site"].startswith("rope:out")
    other = run("rope_dtype=bfloat16", options=("--rounds", "precision"))
    assert (other.code, other.json["failed"]) == (1, "precision")
    numbers = [d.json["steps"][0]["noise_pred"]["rel_l2"] for d in (done, other)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)


def test_modules_on_the_references_inputs(run: Run) -> None:
    """Local errors are far below the propagated ones, and below their own, tighter floors.

    Whatever order the candidate would have its text in: it is given the reference's rows.
    """
    done = run("text.reorder=concatenate", options=("--forcing", "module"))
    assert done.code == 0, done.json["reason"]
    for block in range(4):
        (site,) = sites(done.json, branch="cond", site=f"transformer_blocks.{block}:out.0")
        assert 0 < site["local_rel_l2"] < site["rel_l2"]
        assert 0 < site["local_floor"] < site["floor"] / 3
        assert site["local_ratio"] < SLACK


def test_a_fault_too_small_for_the_free_runs_floors_is_found_all_the_same() -> None:
    """One module's output off by 6e-6: within what rounding has grown to at its place, above what it does itself. The
    reference on the candidate's values shows it, and so does the module on the reference's."""

    def scaled(side: Loaded) -> None:
        proj = cast(Any, side.backend.module()).transformer_blocks[3].ff.net[2]
        original = proj.forward
        proj.forward = lambda *given: original(*given) * (1 + 6e-6)

    request = Request(DEFAULT_MODEL, parse("torch"), parse("torchax"), 1)
    free = run_in_process(request, scaled)
    forced = run_in_process(replace(request, forcing="module"), scaled)
    for found in (free, forced):
        assert found.verdict == "fail"
        assert found.origin is not None
        assert (found.origin.key.site, found.origin.birth) == ("transformer_blocks.3.ff.net.2:out", "module")


def test_a_bfloat16_schedule_fails_before_a_forward_and_names_the_repeats(run: Run) -> None:
    done = run("schedule_dtype=bfloat16", options=("--steps", "50"))
    assert (done.code, done.json["verdict"], done.json["failed"]) == (1, "fail", "preflight")
    assert (done.json["steps"], done.json["sites"], done.json["origin"]) == ([], [], None)
    (failed,) = [c for c in done.json["preflight"] if c["verdict"] == "fail"]
    assert failed["check"] == "candidate schedule"
    assert failed["detail"] == "timesteps repeat: 996 (steps 1, 2)"
    assert failed["detail"] in done.json["reason"]
    request = Request(DEFAULT_MODEL, parse("torch"), parse("torchax", ["schedule_dtype=bfloat16"]), 50)
    calls = ("parity.paths.reference.TorchBackend.call", "parity.paths.jax.candidate.TorchaxBackend.call")
    with mock.patch(calls[0]) as ours, mock.patch(calls[1]) as theirs:
        assert run_in_process(request).verdict == "fail"
    assert not ours.called
    assert not theirs.called


def test_latents_in_bfloat16_drift_while_noise_pred_of_equal_inputs_is_equal(run: Run) -> None:
    done = run("latents_dtype=bfloat16", options=("--steps", "4", "--forcing", "step"))
    assert done.code == 1
    assert [s["step"] for s in done.json["steps"]] == [0, 1, 2, 3]
    for step in done.json["steps"]:
        assert step["noise_pred"]["ratio"] < SLACK
        assert step["noise_pred"]["rel_l2"] < 1e-5
        assert step["latents"]["ratio"] > SLACK
        assert 1e-4 < step["latents"]["rel_l2"] < 1e-2
        assert step["latents_before"]["ratio"] < SLACK
    assert done.json["origin"]["site"] == "loop:latents.after"


PROGRAM = """
import sys
from parity import cli
for given in sys.argv[1:]:
    sys.argv = ["parity", "run", "--json", *(word for setting in given.split() for word in ("--candidate", setting))]
    try:
        cli.main()
    except SystemExit as ended:
        print(f"exit {ended.code}")
"""


def test_meshes_of_eight_devices_pass() -> None:
    splash = "attention.kernel=splash attention.mask=segment_ids"
    meshes = ["mesh=dp=1,sp=1,tp=2", f"mesh=dp=2,sp=2,tp=2 {splash}"]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *meshes], env=environment, capture_output=True, text=True, check=True
    )
    decoder, rest = json.JSONDecoder(), done.stdout
    for mesh in meshes:
        document, end = decoder.raw_decode(rest)
        code, rest = rest[end:].lstrip().split("\n", 1)
        assert code == "exit 0", mesh
        assert document["verdict"] == "pass"
        assert {f"{d['setting']}={d['candidate']}" for d in document["differing_settings"]} == set(mesh.split())
        assert document["steps"][0]["noise_pred"]["rel_l2"] < 1e-5
        (reached,) = [c for c in document["preflight"] if c["check"] == "settings reached"]
        assert all(setting.split("=")[0] in reached["detail"] for setting in mesh.split())
    assert rest == ""


# --- what is printed -------------------------------------------------------------------------------------------


def test_the_document_has_the_keys_of_the_contract(run: Run) -> None:
    for done in (run(), run("attention.mask=none"), run("schedule_dtype=bfloat16", options=("--steps", "50"))):
        document = done.json
        assert set(document) >= KEYS
        assert document["format"] == 1
        assert document["model"] == DEFAULT_MODEL
        for step in document["steps"]:
            assert set(step) >= STEP_KEYS
            assert all(set(step[name]) >= {"rel_l2", "floor", "ratio"} for name in ("noise_pred", "latents"))
        for site in document["sites"]:
            assert set(site) >= SITE_KEYS
        assert all(set(c) == {"check", "verdict", "detail"} for c in document["preflight"])
        if document["origin"] is not None:
            assert set(document["origin"]) >= {"stage", "step", "branch", "site", "birth"}


def test_sites_are_in_execution_order(run: Run) -> None:
    found = [s["site"] for s in sites(run().json, branch="cond")]
    marks = [f"transformer_blocks.{i}:out.0" for i in range(4)]
    assert [s for s in found if s in marks] == marks
    assert found.index("transformer_blocks.0:in.hidden_states") < found.index(f"{FIRST_ATTENTION}:in.query@image")
    assert found.index(f"{FIRST_ATTENTION}:out@image") < found.index("transformer_blocks.0:out.0")


def test_json_keeps_stdout_and_stderr_says_what_is_done(run: Run) -> None:
    assert "starting the sides" in run().err


def test_the_report_for_people(run: Run) -> None:
    done = parity("run", "--candidate", "attention.mask=none")
    assert done.code == 1
    tail = done.out.splitlines()[-7:]
    assert tail[0] == "differs: attention.mask: exact -> none"
    assert tail[1].startswith("verdict: fail (structure)")
    assert FIRST_ATTENTION in tail[2]
    assert tail[-1] == "next: this command with --out RUN, which keeps it; then: parity explain RUN"
    assert "Traceback" not in done.err


def test_fewer_sites_still_find_the_fault(run: Run) -> None:
    done = run("attention.mask=none", options=("--sites", f"{FIRST_ATTENTION}"))
    assert done.code == 1
    assert done.json["origin"]["site"].startswith(f"{FIRST_ATTENTION}:out")
    modules = {s["site"].split(":")[0] for s in done.json["sites"]}
    assert modules == {"loop", FIRST_ATTENTION}


def test_a_kept_run_can_be_opened(tmp_path: Path) -> None:
    out = tmp_path / "kept"
    done = parity("run", "--json", "--steps", "2", "--sites", "proj_out", "--values", "proj_out:out", "--out", str(out))
    assert done.code == 0
    assert json.loads((out / "result.json").read_text()) == done.json
    for role, backend in (("reference", "torch"), ("candidate", "torchax")):
        golden = Golden.open(out / role)
        assert not list(verify(out / role))
        assert golden.complete
        assert golden.steps == (0, 1)
        assert (golden.provenance.side, golden.provenance.backend) == (role, backend)
        last = golden.read_step(1)
        assert bool(last.floors) == (role == "reference")
        (after,) = [r for r in last.records if r.key.site == "loop:latents.after"]
        latents, numbers = read_stage2(out / f"{role}_latents.safetensors")
        assert np.array_equal(latents.numpy(), np.asarray(after.value))
        assert numbers["num_inference_steps"] == 2
        held = [r for r in last.records if r.key.site == "proj_out:out"]
        assert held
        assert all(isinstance(r.value, np.ndarray) for r in held)


# --- bad input -------------------------------------------------------------------------------------------------


def refused(done: Done) -> str:
    """The one line that a bad input is told, with nothing on stdout and no traceback."""
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    *progress, last = done.err.splitlines()
    assert last.startswith("parity: ")
    assert not any(line.startswith("parity: ") for line in progress)
    return last


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--candidate", "attention.msk=none"), "did you mean 'attention.mask'"),
        (("--reference", "nonsense=1"), "unknown setting 'nonsense'"),
        (("--candidate", "attention.mask=non"), "did you mean 'none'"),
        (("--candidate", "attention.mask"), "not of the form SETTING=VALUE"),
        (("--reference", "attention.kernel=splash"), "it takes: flex, sdpa"),
        (("--candidate", "attention.kernel=flex"), "it takes: sdpa"),
        (("--reference", "jit=true"), "it takes: false"),
        (("--candidate", "dtype=float32", "--candidate", "dtype=bfloat16"), "given twice"),
        (("--rounds", "three"), "--rounds takes both, structure, precision"),
        (("--forcing", "block"), "--forcing takes none, step, module"),
        (("--model", "no-such-model"), "unknown model 'no-such-model'"),
        (("--steps", "0"), "--steps must be at least 1, found 0"),
        (("--steps", "-3"), "--steps must be at least 1"),
        (("--seed", "-1"), "--seed"),
        (("--candidate", "mesh=dp=4,sp=4,tp=4"), "needs 64 devices"),
        (("--candidate", "mesh=dp=0,sp=1,tp=1"), "dp=N,sp=N,tp=N"),
        (("--sites", "no.such.module"), "no module matches the site 'no.such.module'"),
        (("--values", "no.such.module"), "no module matches the site 'no.such.module'"),
        (("--stage1", "no-such-file.safetensors"), "no such file"),
        (("--stage1", "x.safetensors", "--prompt", "y"), "exclude each other"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_bad_input_is_one_clear_line(options: tuple[str, ...], said: str) -> None:
    assert said in refused(parity("run", "--json", *options))


def test_bad_input_for_people_ends_in_the_same_line(tmp_path: Path) -> None:
    done = parity("run", "--model", str(tmp_path))
    assert done.code == 2
    assert done.out == ""
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1].startswith("parity: ")
    assert done.err.count("parity: ") == 1


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    assert "no checkpoint in diffusers layout" in refused(parity("run", "--json", "--model", str(tmp_path)))


def test_a_file_for_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_text("no folder")
    assert "is a file" in refused(parity("run", "--json", "--model", str(file)))


def test_another_families_transformer(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}')
    assert "FluxTransformer2DModel" in refused(parity("run", "--json", "--model", str(tmp_path)))


@pytest.mark.parametrize("config", ["{", "[1]", "{}"])
def test_a_broken_config(tmp_path: Path, config: str) -> None:
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text(config)
    assert str(tmp_path) in refused(parity("run", "--json", "--model", str(tmp_path)))


def test_a_checkpoint_without_weights(tmp_path: Path) -> None:
    for path in tiny().case.folder.rglob("*"):
        if path.is_file() and not (path.parent.name == "transformer" and path.suffix == ".safetensors"):
            target = tmp_path / path.relative_to(tiny().case.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path)
    assert "transformer" in refused(parity("run", "--json", "--model", str(tmp_path)))


@pytest.fixture(scope="module")
def stage1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A port's embeddings: those of the tiny model's own prompt."""
    path = tmp_path_factory.mktemp("stage1") / "stage1_embeddings.safetensors"
    assert HunyuanVideo15().write_stage1(path, inputs("torch").conditions)
    return path


def without(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["negative_prompt_embeds_2"]


def misshapen(tensors: dict[str, torch.Tensor]) -> None:
    tensors["prompt_embeds"] = tensors["prompt_embeds"][..., :-1].contiguous()


def mask_of_another_length(tensors: dict[str, torch.Tensor]) -> None:
    tensors["prompt_embeds_mask"] = tensors["prompt_embeds_mask"][:, :-1].contiguous()


def not_finite(tensors: dict[str, torch.Tensor]) -> None:
    tensors["prompt_embeds"] = torch.full_like(tensors["prompt_embeds"], float("nan"))


@pytest.mark.parametrize(
    ("damage", "tensor"),
    [
        (without, "negative_prompt_embeds_2"),
        (misshapen, "prompt_embeds"),
        (mask_of_another_length, "prompt_embeds_mask"),
        (not_finite, "prompt_embeds"),
    ],
)
def test_a_stage1_file_that_does_not_fit(
    stage1: Path, tmp_path: Path, damage: Callable[[dict[str, torch.Tensor]], None], tensor: str
) -> None:
    tensors = safetensors.torch.load_file(stage1)
    damage(tensors)
    path = tmp_path / "bad.safetensors"
    safetensors.torch.save_file(tensors, path)
    said = refused(parity("run", "--json", "--stage1", str(path)))
    assert str(path) in said
    assert f"'{tensor}'" in said


def test_a_stage1_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(b"not a safetensors file")
    assert "not a whole safetensors file" in refused(parity("run", "--json", "--stage1", str(path)))


def test_embeddings_from_a_stage1_file_are_the_prompts(run: Run, stage1: Path) -> None:
    done = run(options=("--stage1", str(stage1)))
    assert done.code == 0
    assert done.json["steps"] == run().json["steps"]


def test_a_folder_to_keep_a_run_in_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("mine")
    assert "not an empty folder" in refused(parity("run", "--json", "--out", str(tmp_path)))
    assert [p.name for p in tmp_path.iterdir()] == ["something"]


def test_nothing_is_left_behind_where_the_input_is_bad(tmp_path: Path) -> None:
    out = tmp_path / "kept"
    refused(parity("run", "--json", "--model", "no-such-model", "--out", str(out)))
    assert not out.exists()


def test_products_round_on_a_cpu_as_on_a_tpu() -> None:
    """A bfloat16 pass is a percent of noise_pred, and the floor is what it costs the reference: two emulations of one
    rounding (0.993 and 1.023 of the floor on two machines)."""
    done = parity("run", "--json", "--steps", "1", "--candidate", "matmul_precision=default")
    noise_pred = done.json["steps"][0]["noise_pred"]
    assert (done.code, done.json["rounds"][0]["verdict"]) == (0, "pass")
    assert 5e-3 < noise_pred["rel_l2"] < 3e-2
    assert 0.9 < noise_pred["rel_l2"] / noise_pred["floor"] < 1.1
    high = parity("run", "--json", "--steps", "1", "--candidate", "matmul_precision=high").json["steps"][0][
        "noise_pred"
    ]
    assert 1e-5 < high["rel_l2"] < 2e-3


def test_what_a_tpus_elementary_functions_will_do_is_told_beforehand() -> None:
    """The error and the floor are of one size; a fault is far above both. The command of docs/compile.md."""
    command = "run --steps 1 --candidate tpu=v6e"
    assert f"\nparity {command}\n" in (Path(__file__).parents[1] / "docs" / "compile.md").read_text(encoding="utf-8")
    right = parity(*command.split(), "--json")
    noise_pred = right.json["steps"][0]["noise_pred"]
    assert (right.code, right.json["rounds"][0]["verdict"]) == (0, "pass")
    assert 1e-4 < noise_pred["rel_l2"] < 3 * noise_pred["floor"] < 1e-2
    said = {check["check"]: check["detail"] for check in right.json["preflight"]}
    assert "within XLA's bounds for a TPU v6e" in said["candidate: elementary functions"]
    wrong = parity("run", "--json", "--steps", "1", "--candidate", "tpu=v5e", "--candidate", "refiner.mask=none")
    assert (wrong.code, wrong.json["failed"]) == (1, "structure")
    assert wrong.json["origin"]["site"].startswith("context_embedder")


def test_after_the_descent_the_inputs_of_the_origin_are_known_to_match(run: Run) -> None:
    done = run("attention.mask=none")
    assert done.json["origin"]["site"] == "transformer_blocks.0.attn.attention:out@image"
    assert "inputs match, output differs by" in done.json["reason"]
