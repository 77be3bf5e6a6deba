"""The text stage: the pipelines' own embeddings bit for bit on the reference, agreed with by the candidate; faults have
origins. The tiny encoders take a few seconds to trace, so each pair is loaded once."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from parity.compare.result import Result
from parity.errors import InconclusiveError
from parity.hooks.sites import plan_sites
from parity.models.folder import Case
from parity.models.registry import family_of
from parity.models.stage_files import write_stage1
from parity.models.text import Encoder, TextStage
from parity.paths.jax.candidate import TorchaxStage
from parity.paths.loaded import tensor
from parity.paths.plan import Given
from parity.runs.compare import Encodings
from parity.runs.request import Request
from parity.runs.text_stage import compare_text
from parity.settings import parse
from tests.paths.sides import tiny
from tests.paths.stages import OPENERS, loaded_stage, run_stage
from tests.support.lab import quiet

HUNYUAN, COG = "tiny-hunyuan-video-1.5", "tiny-cogvideox-1.5"
CPU = torch.device("cpu")


@functools.cache
def made(name: str) -> tuple[Case, TextStage]:
    case = tiny(name).case
    return case, family_of(case.folder).text(case)


def encoder(name: str, part: str = "text_encoder") -> Encoder:
    return next(e for e in made(name)[1].encoders if e.part == part)


def judge(name: str, request: Request | None = None, sites: str = "blocks") -> tuple[Result, Encodings]:
    """The logic check, on the encoders that are loaded already."""
    for part in (e.part for e in made(name)[1].encoders):
        loaded_stage("reference", name, "text", part), loaded_stage("candidate", name, "text", part)
    request = request or Request(name, parse("torch"), parse("torchax"), stages=("text",))
    return compare_text(request, ("logic",), defaultdict(lambda: (sites, ())), OPENERS, quiet)


def tensors(given: Given) -> Iterator[tuple[str, str, torch.Tensor]]:
    for key, x in given.items():
        branch, _, name = key.partition(".")
        yield branch, name, tensor(x)


def origin(result: Result) -> tuple[str, str, str]:
    assert result.origin is not None
    return result.origin.key.branch, result.origin.key.site, result.origin.birth


@pytest.mark.parametrize("name", [pytest.param(HUNYUAN, marks=pytest.mark.slow), COG])
def test_both_sides_agree_and_the_reference_is_the_pipelines_own(name: str) -> None:
    result, own = judge(name)
    assert result.verdict == "pass", result.reason
    (stage,) = result.stages
    assert (stage.stage, stage.verdict) == ("text", "pass")
    assert 0 < stage.by_itself.rel_l2 < 1e-5
    assert {d.key.stage for d in result.sites} == {"text"}
    assert {d.key.step for d in result.sites} == {-1}
    assert {d.key.branch for d in result.sites} == {"cond", "uncond"}
    case, _ = made(name)
    pair = own["logic"]
    expected = family_of(case.folder).conditions(case, parse("torch"), None, CPU)
    ours = {(b, k): x for b, k, x in tensors(pair.reference.inputs)}
    theirs = {(b, k): x for b, k, x in tensors(pair.candidate.inputs)}
    assert ours.keys() == theirs.keys() == {(b, k) for b, of in expected.items() for k in of}
    for (branch, key), near in theirs.items():
        x = expected[branch][key]
        assert torch.equal(ours[branch, key], x), (branch, key)
        assert torch.equal(near, x) == ("mask" in key or not x.any()), (branch, key)
        assert torch.allclose(near, x, atol=1e-4)
    assert set(pair.reference.beside) == {"float64", "rounding 0", "rounding 1", "rounding 2"}
    assert pair.reference.beside["float64"]["cond.encoder_hidden_states"].dtype == "float64"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2"])
def test_observing_changes_no_bit(part: str) -> None:
    stages = [loaded_stage(role, HUNYUAN, "text", part) for role in ("reference", "candidate")]
    plan = plan_sites(["", *stages[0].modules], "blocks", trunk=part)
    given = encoder(HUNYUAN, part).tokens["cond"]
    for stage in stages:
        (seen, more), (plain, records) = run_stage(stage, given, plan, "cond"), run_stage(stage, given, None, "cond")
        assert len(more) > len(records)
        assert (seen == plain).all()


def scale_weight(monkeypatch: pytest.MonkeyPatch, module: str, by: float) -> None:
    """Multiply a weight of the candidate's encoder."""
    candidate = loaded_stage("candidate", COG, "text", "text_encoder").backend
    assert isinstance(candidate, TorchaxStage)
    monkeypatch.setitem(candidate.params, f"{module}.weight", candidate.params[f"{module}.weight"] * by)


def test_a_wrong_weight_has_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "text_encoder.block.1.layer.1.DenseReluDense.wi_0"
    scale_weight(monkeypatch, module, 1.001)
    result, own = judge(COG)
    assert (result.verdict, result.failed) == ("fail", "logic")
    assert origin(result) == ("cond", f"{module}:out", "module")
    assert own == {}  # the loops are not fed what failed
    assert result.stages[0].by_itself.ratio > 3


@pytest.mark.slow
def test_a_small_error_behind_a_wider_floor_is_found_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "text_encoder.block.1.layer.0.SelfAttention.q"
    scale_weight(monkeypatch, module, 1 + 4e-6)
    result, _ = judge(COG)
    assert origin(result) == ("cond", f"{module}:out", "module")
    assert result.stages[0].by_itself.ratio < 3, "the free run's floor hides it"


def file_of(name: str, path: Path, change: object = None) -> Path:
    """A port's stage-1 file of the reference's own embeddings, changed."""
    case, _ = made(name)
    conditions = family_of(case.folder).conditions(case, parse("torch"), None, CPU)
    if callable(change):
        change(conditions)
    write_stage1(path, family_of(case.folder).streams, conditions)
    return path


def judge_file(name: str, path: Path) -> tuple[Result, Encodings]:
    return judge(name, Request(name, parse("torch"), parse("torchax"), stage1=path, stages=("text",)))


@pytest.mark.parametrize("name", [pytest.param(HUNYUAN, marks=pytest.mark.slow), COG])
def test_a_ports_file_is_judged_by_its_valid_rows(name: str, tmp_path: Path) -> None:
    noise = torch.randn(made(name)[1].encoders[0].width, generator=torch.Generator().manual_seed(0))

    def padding(conditions: dict[str, dict[str, torch.Tensor]]) -> None:
        conditions["cond"]["encoder_hidden_states"][:, -1] += noise

    result, own = judge_file(name, file_of(name, tmp_path / "f.safetensors", padding))
    # HunyuanVideo's last row is padding, which its transformer masks; CogVideoX reads every row.
    assert result.verdict == ("pass" if name == HUNYUAN else "fail"), result.reason
    assert {d.key.module for d in result.sites} == {"loop"}
    assert set(own) == ({"logic"} if name == HUNYUAN else set())
    if name == COG:
        assert origin(result)[:2] == ("cond", "loop:prompt_embeds")


def test_a_dtype_of_an_encoder_that_is_not_called_is_no_pass() -> None:
    settings = parse("torchax", ["text.byt5_dtype=bfloat16"])
    request = Request(HUNYUAN, parse("torch"), settings, stages=("text",), prompt="A cat")
    with pytest.raises(InconclusiveError, match="neither prompt quotes anything"):
        judge(HUNYUAN, request)
