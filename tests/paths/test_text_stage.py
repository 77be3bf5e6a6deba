"""The text stage: the pipelines' own embeddings bit for bit on the reference, agreed with by the candidate; faults have
origins. The tiny encoders take a few seconds to trace, so each pair is loaded once."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parity.compare.result import Result
from parity.errors import UnjudgedError, UsageError
from parity.hooks.sites import plan_sites
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.models.text import Encoder, TextStage
from parity.paths.stage import Stage
from parity.runs.request import Request
from parity.runs.stages import text as text_module
from parity.runs.stages.stage import StagePair, load_stage
from parity.runs.stages.text import Texts, encoder_stage, judge_text
from parity.settings import Settings, parse

HUNYUAN, COG = "tiny-hunyuan-video-1.5", "tiny-cogvideox-1.5"
CPU = torch.device("cpu")


@functools.cache
def made(name: str) -> tuple[Case, TextStage]:
    folder = resolve_model(name)
    case = make_case(name, folder, GenerationSpec.load(folder))
    return case, family_of(folder).text(case)


def encoder(name: str, part: str = "text_encoder") -> Encoder:
    return next(e for e in made(name)[1].encoders if e.part == part)


@functools.cache
def pair(name: str, part: str) -> StagePair:
    return load_stage(encoder_stage(made(name)[0], encoder(name, part)), parse("torch"), parse("torchax"))


def judge(name: str, monkeypatch: pytest.MonkeyPatch, request: Request | None = None, sites: str = "blocks") -> Texts:
    """The structure round, on the pairs that are loaded already."""

    def loaded(stage: Stage, reference: Settings, candidate: Settings) -> StagePair:
        return pair(name, stage.trunk)

    monkeypatch.setattr(text_module, "load_stage", loaded)
    case, _ = made(name)
    request = request or Request(name, parse("torch"), parse("torchax"))
    return judge_text(request, case, family_of(case.folder), ("structure",), (sites, ()), lambda *_: None)


def origin(result: Result) -> tuple[str, str, str]:
    assert result.origin is not None
    return result.origin.key.branch, result.origin.key.site, result.origin.birth


@pytest.mark.parametrize("name", [HUNYUAN, COG])
def test_both_sides_agree_and_the_reference_is_the_pipelines_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = judge(name, monkeypatch)
    assert texts.result.verdict == "pass", texts.result.reason
    (stage,) = texts.result.stages
    assert (stage.stage, stage.verdict) == ("text", "pass")
    assert 0 < stage.by_itself.rel_l2 < 1e-5
    assert {d.key.stage for d in texts.result.sites} == {"text"}
    assert {d.key.step for d in texts.result.sites} == {-1}
    assert {d.key.branch for d in texts.result.sites} == {"cond", "uncond"}
    case, _ = made(name)
    ours, theirs = texts.own["structure"]
    expected = family_of(case.folder).conditions(case, parse("torch"), None, CPU)
    assert {b: set(c) for b, c in ours.own.items()} == {b: set(c) for b, c in expected.items()}
    for branch, condition in expected.items():
        for key, x in condition.items():
            assert torch.equal(ours.own[branch][key], x), (branch, key)
            near = theirs.own[branch][key]
            assert torch.equal(near, x) == ("mask" in key or not x.any()), (branch, key)
            assert torch.allclose(near, x, atol=1e-4)
    assert set(ours.beside) == {"float64", "rounding 0", "rounding 1", "rounding 2", "float32"}
    assert ours.beside["float64"]["cond"]["encoder_hidden_states"].dtype == torch.float64


def test_padded_rows_and_layers_that_nobody_reads_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = judge(HUNYUAN, monkeypatch).result.sites
    padded = [d for d in sites if d.key.is_padding]
    assert {d.verdict for d in padded} == {"apart"}
    assert "loop:prompt_embeds@padding" in {d.key.site for d in padded}
    modules = {d.key.module for d in sites if d.shapes != ((), ())}
    assert "text_encoder.layers.1" in modules  # the last whose output is taken, of four
    assert not modules & {"text_encoder.layers.2", "text_encoder.layers.3", "text_encoder.norm"}
    # The negative prompt quotes nothing: ByT5 is not called for it.
    assert {d.key.branch for d in sites if d.key.module.startswith("text_encoder_2")} == {"cond"}


@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2"])
def test_observing_changes_no_bit(part: str) -> None:
    loaded = pair(HUNYUAN, part)
    plan = plan_sites(["", *loaded.truth.modules], "blocks", trunk=part)
    given = encoder(HUNYUAN, part).tokens["cond"]
    for runner in (loaded.truth, loaded.candidate):
        seen, plain = runner.run(given, plan, "cond"), runner.run(given, None, "cond")
        (output,) = seen.outputs
        assert len(seen.records) > len(plain.records)
        assert (seen.outputs[output] == plain.outputs[output]).all()


def test_a_wrong_weight_has_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "text_encoder.block.1.layer.1.DenseReluDense.wi_0"
    params = pair(COG, "text_encoder").candidate.params  # type: ignore[attr-defined]
    monkeypatch.setitem(params, f"{module}.weight", params[f"{module}.weight"] * 1.001)
    texts = judge(COG, monkeypatch)
    assert (texts.result.verdict, texts.result.failed) == ("fail", "structure")
    assert origin(texts.result) == ("cond", f"{module}:out", "module")
    assert texts.own == {}  # the loops are not fed what failed
    assert texts.result.stages[0].by_itself.ratio > 3


def test_a_mask_that_an_encoder_ignores_has_an_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = pair(HUNYUAN, "text_encoder_2").candidate
    trunk = candidate.root.get_submodule("text_encoder_2")  # type: ignore[attr-defined]
    forget = trunk.register_forward_pre_hook(lambda m, a, k: (a, {**k, "attention_mask": None}), with_kwargs=True)
    monkeypatch.setattr(candidate, "programs", {})
    try:
        result = judge(HUNYUAN, monkeypatch).result
    finally:
        forget.remove()
    assert result.verdict == "fail"
    branch, site, birth = origin(result)
    assert (branch, birth) == ("cond", "input")
    assert site.endswith(":in.attention_mask")
    assert site.startswith("text_encoder_2")
    assert "a tensor against None" in result.reason


def file_of(name: str, path: Path, change: object = None) -> Path:
    """A port's stage-1 file of the reference's own embeddings, changed."""
    case, _ = made(name)
    conditions = family_of(case.folder).conditions(case, parse("torch"), None, CPU)
    if callable(change):
        change(conditions)
    family_of(case.folder).write_stage1(path, conditions)
    return path


def judge_file(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> Texts:
    return judge(name, monkeypatch, Request(name, parse("torch"), parse("torchax"), stage1=path))


@pytest.mark.parametrize("name", [HUNYUAN, COG])
def test_a_ports_file_is_judged_by_its_valid_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.randn(made(name)[1].encoders[0].width, generator=torch.Generator().manual_seed(0))

    def padding(conditions: dict[str, dict[str, torch.Tensor]]) -> None:
        conditions["cond"]["encoder_hidden_states"][:, -1] += noise

    texts = judge_file(name, file_of(name, tmp_path / "f.safetensors", padding), monkeypatch)
    # HunyuanVideo's last row is padding, which its transformer masks; CogVideoX reads every row.
    assert texts.result.verdict == ("pass" if name == HUNYUAN else "fail"), texts.result.reason
    assert {d.key.module for d in texts.result.sites} == {"loop"}
    assert set(texts.own) == ({"structure"} if name == HUNYUAN else set())
    if name == COG:
        assert origin(texts.result)[:2] == ("cond", "loop:prompt_embeds")


def test_a_file_of_bfloat16_numbers_is_judged_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(conditions: dict[str, dict[str, torch.Tensor]]) -> None:
        for branch in conditions.values():
            branch["encoder_hidden_states"] = branch["encoder_hidden_states"].bfloat16().float()

    texts = judge_file(COG, file_of(COG, tmp_path / "f.safetensors", rounded), monkeypatch)
    assert texts.result.verdict == "pass", texts.result.reason
    (note,) = texts.result.notes
    assert note.text == "the file's prompt_embeds are bfloat16 numbers, and are judged as such"
    assert texts.own == {}  # in the structure round both sides take the file


def test_a_file_of_another_prompt_is_told_by_its_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(conditions: dict[str, dict[str, torch.Tensor]]) -> None:
        conditions["cond"]["encoder_attention_mask"][:, -1] = 1

    result = judge_file(HUNYUAN, file_of(HUNYUAN, tmp_path / "f.safetensors", longer), monkeypatch).result
    assert (result.verdict, result.failed, result.sites) == ("fail", "preflight", ())
    assert "'prompt_embeds' has 39 valid tokens, the prompt 38" in result.reason


def test_a_dtype_of_an_encoder_that_is_not_called_is_no_pass() -> None:
    case, _ = made(HUNYUAN)
    plain = replace(case, spec=replace(case.spec, prompt="A cat"))
    request = Request(HUNYUAN, parse("torch"), parse("torchax", ["text.byt5_dtype=bfloat16"]))
    with pytest.raises(UnjudgedError, match="neither prompt quotes anything"):
        judge_text(request, plain, family_of(case.folder), ("structure",), ("blocks", ()), lambda *_: None)


def test_a_family_without_known_encoders_is_refused() -> None:
    from parity.models.generic.family import Generic

    case, _ = made(COG)
    with pytest.raises(UsageError, match="leave text out of --stages"):
        Generic.text(Generic.__new__(Generic), replace(case, name="other"))
