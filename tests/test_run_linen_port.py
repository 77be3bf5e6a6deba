"""`parity run` on a port in Flax linen: observed by linen's own names, through scans and checkpoints."""

from __future__ import annotations

from pathlib import Path

from tests.linen_port import PORT, write
from tests.test_run_ports import compare, modules


def test_a_port_in_linen_is_observed_layer_by_layer(tmp_path: Path) -> None:
    result = compare(*write(tmp_path), sites="all")
    assert result.verdict == "pass"
    assert {"proj_in", "proj_out", *(f"blocks.{i}{at}" for i in range(3) for at in ("", ".norm", ".lin"))} <= modules(
        result
    )


def test_a_fault_in_one_layer_of_a_scan_is_placed(tmp_path: Path) -> None:
    faulty = PORT.replace(
        "    net, weights =", '    layers["lin"]["bias"] = layers["lin"]["bias"].at[1].add(0.01)\n    net, weights ='
    )
    result = compare(*write(tmp_path, faulty), sites="all")
    assert result.verdict == "fail"
    assert result.origin is not None
    assert (result.origin.key.module, result.origin.birth) == ("blocks.1.lin", "module")
