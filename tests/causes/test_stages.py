"""`parity explain` in a stage outside the loop: the setting is named, and where none differs that is said."""

from __future__ import annotations

import json
from pathlib import Path

import diffusers
import pytest

from parity.causes.request import of_run
from parity.causes.stages import explain_stage
from parity.compare.result import Result
from parity.errors import UsageError
from parity.runs.request import Request
from parity.settings import parse
from tests.paths.stages import OPENERS
from tests.support.ports import stage2

COG = "tiny-cogvideox-1.5"


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 4 x 5 latents in place of the class's 4 x 6, so that latents of 2 x 6 are more than one."""
    enable = diffusers.AutoencoderKLCogVideoX.enable_tiling
    monkeypatch.setattr(diffusers.AutoencoderKLCogVideoX, "enable_tiling", lambda vae: enable(vae, 32, 40))


def explained(latents: Path, *candidate: str) -> Result:
    chosen = parse("torchax", candidate)
    request = Request(COG, parse("torch"), chosen, stages=("vae",), stage2=latents, sites="none")
    return explain_stage(request, OPENERS, lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "causes"),
    [
        (["vae.tiling=true"], ["vae.tiling"]),
        (["vae.tiling=true", "matmul_precision=high"], ["vae.tiling"]),  # what only rounds is no cause of another fault
        ([], []),
    ],
)
def test_a_setting_of_the_decoder_is_the_cause(
    tiles: None, tmp_path: Path, candidate: list[str], causes: list[str]
) -> None:
    result = explained(stage2(tmp_path, 1, 16, 1, 2, 6, frames=1), *candidate)
    assert result.verdict == ("fail" if causes else "pass")
    assert [c.setting for c in result.causes] == causes
    assert sum(c.share for c in result.causes) == pytest.approx(len(causes), abs=1e-3)


REQUEST = {
    "stage1": None, "prompt": None, "model": COG, "inputs": None, "stages": ["text", "transformer", "vae"],
    "stage2": None, "reference": [], "candidate": ["vae.tiling=true"], "steps": 3, "seed": 4,
}  # fmt: skip


def kept(folder: Path, request: dict[str, object], verdicts: dict[str, str], origin: str | None) -> Path:
    stages = [{"stage": name, "verdict": verdict} for name, verdict in verdicts.items()]
    document = {
        "verdict": "fail" if "fail" in verdicts.values() or origin else "pass", "stages": stages,
        "differing_settings": [], "origin": None if origin is None else {"stage": origin},
    }  # fmt: skip
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "result.json").write_text(json.dumps(document))
    (folder / "reference").mkdir()
    return folder


@pytest.mark.parametrize(
    ("verdicts", "origin", "expected"),
    [
        ({"text": "pass", "vae": "fail"}, "vae", "vae"),
        ({"text": "fail"}, "text", "text"),
        ({"text": "pass", "vae": "fail"}, "transformer", None),
        ({"text": "pass", "vae": "pass"}, None, None),
    ],
)
def test_a_kept_run_is_explained_in_the_stage_that_failed(
    verdicts: dict[str, str], origin: str | None, expected: str | None, tmp_path: Path
) -> None:
    found = of_run(kept(tmp_path, REQUEST, verdicts, origin), OPENERS).outside
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert (found.stages, found.steps, found.seed) == ((expected,), 3, 4)
    assert found.candidate["vae.tiling"] is True


def test_the_latents_that_the_run_kept_are_decoded_again(tmp_path: Path) -> None:
    folder = kept(tmp_path, REQUEST, {"vae": "fail"}, None)
    (folder / "reference_latents.safetensors").write_bytes(b"")
    found = of_run(folder, OPENERS).outside
    assert found is not None
    assert found.stage2 == folder / "reference_latents.safetensors"


def test_a_run_that_was_kept_before_settings_were_is_refused(tmp_path: Path) -> None:
    request = {name: REQUEST[name] for name in ("stage1", "prompt", "model", "inputs")}
    with pytest.raises(UsageError, match="failed in its vae stage and does not say with which settings"):
        of_run(kept(tmp_path, request, {"vae": "fail"}, None), OPENERS)
