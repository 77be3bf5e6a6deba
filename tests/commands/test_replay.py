"""`parity replay`: a golden's recorded inputs through this machine's modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchax")

from parity import cli
from parity.golden import Golden
from parity.hooks.calls import Call
from parity.hooks.rerun import rerun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two blocks' inputs, recorded by the reference with their local floors."""
    where = str(tmp_path_factory.mktemp("replay") / "golden")
    with pytest.MonkeyPatch.context() as patch:
        sites = ("--sites", "transformer_blocks.[02]", "--values", "transformer_blocks.[02]:in")
        patch.setattr("sys.argv", ["parity", "record", where, *sites])
        cli.main.__globals__["app"](standalone_mode=False)
    return where


def replay(
    golden: str, *options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Any, dict[str, Any], str]:
    monkeypatch.setattr("sys.argv", ["parity", "replay", golden, *options, "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    return ended.value.code, json.loads(out.out) if out.out else {}, out.err


def test_the_golden_holds_inputs_and_local_floors(golden: str) -> None:
    step = Golden.open(golden).read_step(0)
    held = [r for r in step.records if r.key.site == "transformer_blocks.2:in.encoder_hidden_states"]
    assert held
    assert all(isinstance(r.value, np.ndarray) for r in held)
    local = {k.site: f for k, f in step.floors.items() if not np.isnan(f.local_l2)}
    assert "transformer_blocks.2:out.0" in local
    assert all(0 < f.local_l2 < f.l2 for site, f in local.items() if "blocks.2:out" in site and "padding" not in site)


def test_both_sides_of_this_machine_agree(
    golden: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = replay(golden, monkeypatch=monkeypatch, capsys=capsys)
    assert (code, document["verdict"]) == (0, "pass")
    outs = [s for s in document["sites"] if s["site"].startswith("transformer_blocks")]
    assert {s["site"].split(":")[0] for s in outs} == {"transformer_blocks.0", "transformer_blocks.2"}
    assert {s["branch"] for s in outs} == {"cond", "uncond"}
    assert all(0 < s["local_rel_l2"] < 1e-6 and s["local_ratio"] < 3 for s in outs)
    code, document, _ = replay(golden, "--side", "reference", monkeypatch=monkeypatch, capsys=capsys)
    assert code == 0
    assert max(s["local_rel_l2"] for s in document["sites"]) < 1e-7


def test_a_fault_shows_at_each_block_by_itself(
    golden: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = replay(golden, "--setting", "attention.mask=zero_kv", monkeypatch=monkeypatch, capsys=capsys)
    assert (code, document["verdict"]) == (1, "fail")
    assert document["origin"]["site"].startswith("transformer_blocks.0:out")
    assert {s["verdict"] for s in document["sites"] if ":out" in s["site"]} == {"fail"}


def test_bad_input(
    golden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, said in (
        ((str(tmp_path / "none"),), "there is no golden"),
        ((golden, "--side", "middle"), "--side takes reference, candidate"),
    ):
        code, _, err = replay(*options, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 2
        assert said in err
        assert "Traceback" not in err


def test_a_golden_without_inputs_cannot_be_judged(
    golden: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.test_own_goldens import MODELS, ROOT

    code, _, err = replay(str(ROOT / MODELS[0]), monkeypatch=monkeypatch, capsys=capsys)
    assert code == 125
    assert "holds no module's inputs whole" in err


def test_a_module_runs_again_to_the_same_bits() -> None:
    import torch

    linear = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    call = Call("m", 0, ("cond",), (x,), {}, None)
    assert torch.equal(rerun(linear, call, None), linear(x))
    wide = rerun(linear, call, torch.float64)
    assert wide.dtype == torch.float64
    assert linear.weight.dtype == torch.float32
