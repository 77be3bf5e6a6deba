"""A port of a model never seen, in Flax NNX: its verdict, its origin and its causes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nnx_port import PORT, write
from tests.ports import PORT as TAPPED
from tests.ports import write as write_tapped
from tests.test_run import parity

pytestmark = pytest.mark.slow


def test_an_nnx_port_gets_a_verdict_an_origin_and_causes(tmp_path: Path) -> None:
    assert len(PORT.strip().splitlines()) < 60
    reference, candidate = write(tmp_path)
    paths = ["--reference-path", reference, "--candidate-path", candidate]
    agrees = parity("run", "--json", *paths, "--candidate", "attention.mask=exact")
    assert (agrees.code, agrees.json["verdict"]) == (0, "pass"), agrees.err or agrees.json["reason"]
    assert {"patch:out", "blocks.0:in.keep", "blocks.2:out", "out:out"} <= {s["site"] for s in agrees.json["sites"]}

    failed = parity("run", "--json", *paths, "--out", str(tmp_path / "run"))
    assert (failed.code, failed.json["verdict"]) == (1, "fail")
    assert failed.json["origin"]["site"] == "blocks.0:in.keep", "the mask is no longer handed down"

    told = parity("explain", "--json", str(tmp_path / "run"), *paths)
    assert told.code == 1, told.err
    cause = told.json["causes"][0]
    assert (cause["setting"], cause["reference"], cause["candidate"]) == ("attention.mask", "exact", "none")
    assert cause["share"] == pytest.approx(1.0, abs=1e-3)
    values = {w["kind"]: w["value"] for w in cause["witnesses"]}
    assert values == {"counterfactual": pytest.approx(1.0, abs=1e-3), "signature": pytest.approx(1.0, abs=1e-3)}
    assert "--candidate attention.mask=exact" in cause["witnesses"][0]["detail"], "a port's own value is no option"
    assert told.json["origin"]["site"] == "blocks.0:in.keep"


def test_a_fault_that_is_no_setting_is_gauged(tmp_path: Path) -> None:
    faulty = TAPPED.replace('linear(w, name + ".qkv", h)', 'linear(w, name + ".qkv", h) * (1.25 if "1" in name else 1)')
    reference, candidate = write_tapped(tmp_path, faulty)
    options = ["--reference-path", reference, "--candidate-path", candidate, "--sites", "all"]
    assert parity("run", "--json", *options, "--out", str(tmp_path / "run")).code == 1
    told = parity("explain", "--json", str(tmp_path / "run"), *options[:4])
    assert told.json["origin"]["site"] == "blocks.1.qkv:out"
    (cause,) = told.json["causes"]
    assert cause["cause"].startswith("blocks.1.qkv:out is the reference's times 1.25")
    port = tmp_path / "port.py"
    port.write_text(port.read_text() + "# mended\n")
    other = parity("explain", str(tmp_path / "run"), *options[:4])
    assert (other.code, "was edited since" in other.err) == (2, True)
    assert any("the paths differ in no setting that the port knows" in note for note in told.json["notes"])


def test_bisect_finds_the_setting_of_a_port_that_fails_it(tmp_path: Path) -> None:
    declared = '{"attention.mask": "none", "attention.k_smooth": "true"}'
    read = """    assert case.settings["attention.k_smooth"]
    w["gain"] = 1.0 if case.settings["attention.mask"] == "exact" else 1.1
    rename ="""
    faulty = (
        TAPPED.replace('{"attention.softmax_dtype": "float32"}', declared)
        .replace('linear(w, name + ".qkv", h)', 'linear(w, name + ".qkv", h) * w["gain"]')
        .replace("    rename =", read)
    )
    reference, candidate = write_tapped(tmp_path, faulty)
    paths = ["--reference-path", reference, "--candidate-path", candidate, "--state", str(tmp_path / "state.json")]
    found = parity("bisect", "settings", "--json", *paths)
    assert found.code == 0, found.err
    assert found.json["culprits"] == [{"setting": "attention.mask", "without": "exact", "candidate": "none"}]
    assert {s["setting"] for s in found.json["searched"]} == {"attention.mask", "attention.k_smooth"}
