"""`parity run` on a port in Flax linen: observed by linen's own names, through scans and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.linen_port import PORT, write
from tests.test_run import parity
from tests.test_run_ports import compare, modules

pytestmark = pytest.mark.slow


def test_a_port_in_linen_is_observed_layer_by_layer(tmp_path: Path) -> None:
    result = compare(*write(tmp_path), sites="all")
    assert result.verdict == "pass"
    assert {"proj_in", "proj_out", *(f"blocks.{i}{at}" for i in range(3) for at in ("", ".norm", ".lin"))} <= modules(
        result
    )


def test_a_layer_s_module_that_reads_what_all_layers_share_is_seen_once_a_layer(tmp_path: Path) -> None:
    """A scan traces its layer once before it runs it, and what all layers share is then the call's own."""
    port = PORT.replace("self, x: jax.Array, _: None)", "self, x: jax.Array, c: jax.Array)")
    port = port.replace("(x))), None", '(x))) + nn.Dense(16, name="cond")(c), None')
    port = port.replace("length=3)", "in_axes=(nn.broadcast,), length=3)")
    port = port.replace("self.proj_in(hidden_states), None)", "self.proj_in(hidden_states), hidden_states[:, :1])")
    port = port.replace(
        '"lin": dense(f"blocks.{i}.lin")', '"lin": dense(f"blocks.{i}.lin"), "cond": dense(f"blocks.{i}.cond")'
    )
    reference, candidate = write(tmp_path, port)
    model = tmp_path / "model.py"
    text = model.read_text().replace("def forward(self, x):", "def forward(self, x, c):")
    text = text.replace(
        "torch.nn.Linear(16, 16)\n", "torch.nn.Linear(16, 16)\n        self.cond = torch.nn.Linear(8, 16)\n"
    )
    text = text.replace("self.lin(self.norm(x)))", "self.lin(self.norm(x))) + self.cond(c)")
    model.write_text(text.replace("block(x)", "block(x, hidden_states[:, :1])"))
    result = compare(reference, candidate, sites="all")
    assert result.verdict == "pass", result.reason
    assert {f"blocks.{i}{at}" for i in range(3) for at in ("", ".norm", ".lin", ".cond")} <= modules(result)


FAULTY = PORT.replace(
    "    net, weights =", '    layers["lin"]["bias"] = layers["lin"]["bias"].at[1].add(0.01)\n    net, weights ='
)
EXACT = "inputs match (in.inputs in the candidate), output differs"
"""What is said of a Dense, whose input linen calls `inputs` and torch `input`."""


def test_a_fault_in_one_layer_of_a_scan_is_placed(tmp_path: Path) -> None:
    result = compare(*write(tmp_path, FAULTY), sites="all")
    assert result.verdict == "fail"
    assert result.origin is not None
    assert (result.origin.key.module, result.origin.birth) == ("blocks.1.lin", "module")
    assert EXACT in result.reason
    assert {d.called for d in result.sites if d.key.site == "blocks.0.norm:in.input"} == {"in.x"}


def test_the_same_is_said_of_its_recordings_and_where_blocks_alone_were_asked_for(tmp_path: Path) -> None:
    reference, candidate = write(tmp_path, FAULTY)
    paths = ["--reference-path", reference, "--candidate-path", candidate, "--steps", "1"]
    ran = parity("run", "--json", *paths, "--out", str(tmp_path / "run"), "--sites", "blocks")
    assert EXACT in ran.json["reason"], "the block is looked at closer"
    recorded = parity("run", "--json", *paths, "--out", str(tmp_path / "all"), "--sites", "all", "--overwrite")
    (side,) = [s for s in recorded.json["sites"] if s["site"] == "proj_in:in.input"]
    assert (side["verdict"], side["note"]) == ("pass", "in.inputs in the candidate")
    diffed = parity("diff", "--json", str(tmp_path / "all" / "reference"), str(tmp_path / "all" / "candidate"))
    assert EXACT in diffed.json["reason"]
    assert diffed.json["origin"] == recorded.json["origin"]


def test_what_a_dense_is_given_is_explained_as_it_was_compared(tmp_path: Path) -> None:
    faulty = PORT.replace('nn.LayerNorm(1e-5, name="norm")(x)', '1.25 * nn.LayerNorm(1e-5, name="norm")(x)')
    reference, candidate = write(tmp_path, faulty)
    paths = ["--reference-path", reference, "--candidate-path", candidate, "--steps", "1", "--sites", "all"]
    ran = parity("run", "--json", *paths, "--out", str(tmp_path / "run"))
    assert ran.json["origin"]["site"] == "blocks.0.lin:in.input", ran.json["reason"]
    told = parity("explain", "--json", str(tmp_path / "run"), *paths[:4])
    (cause,) = told.json["causes"]
    assert cause["cause"].startswith("blocks.0.lin:in.input is the reference's times 1.25")
