"""Several faults at once: one run lists each module that differs by itself, in order, and none that only hands on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parity.compare.independent import differences
from parity.compare.result import Result
from parity.paths.live import Host
from parity.runs.compare import run
from parity.runs.request import Request, load_ports
from tests.support import nnx_port
from tests.support.lab import quiet

Change = tuple[str, str]

IN_TORCH: dict[str, Change] = {
    "patch": ("self.patch(hidden_states", "self.patch(1.01 * hidden_states"),
    "text": ("torch.nn.Linear(12, width)", "torch.nn.Sequential(torch.nn.Linear(12, width), torch.nn.GELU())"),
    "norm": ("torch.nn.LayerNorm(width)", "torch.nn.LayerNorm(width, eps=1e-2)"),
    "eps": ("torch.nn.LayerNorm(width)", "torch.nn.LayerNorm(width, eps=1e-6)"),
    "no norm": ("self.qkv(self.norm(x))", "self.qkv(x)"),
    "attention": ("F.scaled_dot_product_attention(q, k", "F.scaled_dot_product_attention(q * 1.1, k"),
    "mask": ("x = block(x, keep)", "x = block(x, None)"),
    "another mask": ("x = block(x, keep)", "x = block(x, keep.new_ones(keep.shape))"),
    "nan": ("k, v = (t.unflatten", "k, v = (t.log().unflatten"),
    "called twice": ("self.qkv(self.norm(x))", "self.qkv(self.norm(self.norm(x)))"),
    "residual": ("return x + self.proj", "return 1.02 * x + self.proj"),
    "out": ("self.out(x[:, :image])", "1.05 * self.out(x[:, :image])"),
}  # fmt: skip
"""Faults of the model of `nnx_port`."""

LISTED = {
    "patch": "patch's input",
    "text": "text",
    "mask": "blocks.*'s input keep",
    "another mask": "blocks.*'s input keep",
    "norm": "blocks.*.norm",
    "attention": "blocks.*.attention's input query",
    "nan": "blocks.0.attention's input query",
    "called twice": "blocks.*.qkv's input",
    "residual": "blocks.*",
    "out": "the model's output",
}
"""Where each is, in the order in which they act."""

IN_FLAX: dict[str, Change] = {
    "patch": ("x = self.patch(", "x = 1.01 * self.patch("),
    "norm": ("epsilon=1e-5", "epsilon=1e-2"),
    "eps": ("epsilon=1e-5", "epsilon=1e-6"),
    "no norm": ("self.qkv(self.norm(x))", "self.qkv(x)"),
    "attention": ("dot_product_attention(q, k", "dot_product_attention(q * 1.1, k"),
    "out": ("return self.out(", "return 1.05 * self.out("),
}
STACKS = [
    "mask", "text+nan", "patch+text+norm+attention+out", "text+mask+norm+residual",
    "norm+attention+another mask", "text+called twice+out",
]  # fmt: skip


def stack(folder: Path, faults: str, runs: str, *settings: str, **options: Any) -> Result:
    """The model of `nnx_port` against itself with these faults, run as torch, torchax or Flax.

    Args:
        settings: of both sides. options: of `Request`.
    """
    text, known = (nnx_port.PORT, IN_FLAX) if runs == "flax" else (nnx_port.REFERENCE, IN_TORCH)
    for name in filter(None, faults.split("+")):
        before, after = known[name]
        assert text.count(before) == 1
        text = text.replace(before, after)
    reference, port = nnx_port.write(folder, text.replace("inputs=given", f'runs="{runs}"'))
    candidate = port if runs == "flax" else port.replace(":build", ":reference")
    loaded = load_ports(reference, candidate, None, openers := Host())
    ours, theirs = loaded.settings(list(settings), ["attention.mask=exact", *settings])
    return run(Request("model", ours, theirs, ports=loaded, **options), quiet, openers=openers)


@pytest.mark.parametrize(
    ("faults", "runs"),
    [(STACKS[1], "torch"), (STACKS[2], "torchax"), (STACKS[3], "torch")]
    + [pytest.param(faults, "torch", marks=pytest.mark.slow) for faults in ("norm", STACKS[0], STACKS[2], *STACKS[4:])]
    + [pytest.param(STACKS[3], "torchax", marks=pytest.mark.slow)],
)
def test_every_module_with_a_fault_is_listed_in_order(faults: str, runs: str, tmp_path: Path) -> None:
    found = differences(stack(tmp_path, faults, runs))
    listed = [name for name in LISTED if name in faults.split("+")]
    assert [d.place for d in found] == [LISTED[name] for name in listed]


def test_every_faulty_module_is_listed_by_the_precision_check(tmp_path: Path) -> None:
    result = stack(tmp_path, "text+norm+residual+out", "torchax", "dtype=bfloat16", checks="precision")
    assert (result.verdict, result.failed) == ("fail", "precision")
    assert [d.place for d in differences(result)] == ["text", "blocks.*.norm", "blocks.*", "the model's output"]


@pytest.mark.slow
def test_the_precision_check_agrees_where_nothing_is_wrong_and_places_a_fault_inside_a_block(tmp_path: Path) -> None:
    assert stack(tmp_path, "", "torchax", "dtype=bfloat16", checks="precision").verdict == "pass"
    result = stack(tmp_path, "norm", "torchax", "dtype=bfloat16", checks="precision")
    assert result.origin is not None
    assert result.origin.key.site == "blocks.0.norm:out"


def test_every_faulty_module_of_a_flax_port_is_listed(tmp_path: Path) -> None:
    found = differences(stack(tmp_path, "patch+norm+attention+out", "flax"))
    assert [d.place for d in found] == [
        "blocks.0's input x",
        "blocks.*.norm",
        "blocks.*.proj's input",
        "the model's output",
    ]


def test_each_says_what_was_done_to_its_values_where_that_is_known(tmp_path: Path) -> None:
    found = differences(stack(tmp_path, "patch+mask+norm+out", "torch"))
    assert [cause for d in found for cause in d.causes] == [
        "patch's input: the candidate's is the reference's times 1.01",
        "blocks.0's input keep: the candidate's lets 64 keys through, the reference's 53",
        "the model's output: the candidate's is the reference's times 1.05",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["torchax", "flax"])
def test_another_epsilon_of_a_norm_is_named(runs: str, tmp_path: Path) -> None:
    assert [d.causes for d in differences(stack(tmp_path, "eps", runs))] == [
        ["blocks.0.norm: the candidate's is the reference's made with eps=1e-06, not 1e-05"]
    ]


@pytest.mark.parametrize("runs", [pytest.param("torch", marks=pytest.mark.slow), "flax"])
def test_a_norm_that_is_left_out_is_named(runs: str, tmp_path: Path) -> None:
    """Flax calls the input of its linear layers otherwise, which the closer look into one block shows."""
    (found,) = differences(stack(tmp_path, "no norm", runs))
    assert found.place == "blocks.*.qkv's input"
    assert found.causes == ["blocks.0.qkv's input: the candidate's is the reference's made without blocks.*.norm"]


TURNED = """
import torch
from torch.nn import functional as F

from parity.port import Port


class Block(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        if fused:
            self.qk = torch.nn.Linear(16, 32)
        else:
            self.q, self.k = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.v, self.proj = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.norm_q, self.norm_k = (torch.nn.LayerNorm(16, elementwise_affine=False) for _ in range(2))

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1) if self.fused else (self.q(x), self.k(x))
        return x + self.proj(F.scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), self.v(x)))


class Net(torch.nn.Module):
    def __init__(self, fused=False):
        super().__init__()
        torch.manual_seed(0)
        self.patch = torch.nn.Linear(4, 16)
        self.blocks = torch.nn.ModuleList(Block(fused) for _ in range(2))
        self.out = torch.nn.Linear(16, 4)

    def forward(self, hidden_states):
        x = self.patch(FAULT hidden_states)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def reference(case):
    return Port(module=Net(), inputs={"hidden_states": torch.linspace(-1, 1, 96).reshape(1, 24, 4)})


def build(case):
    held, net, order = Net().state_dict(), Net(fused=True), torch.arange(16).view(8, 2).T.flatten()
    for i in range(2):
        for what in ("weight", "bias"):
            both = [held.pop(f"blocks.{i}.{name}.{what}")[order] for name in "qk"]
            held[f"blocks.{i}.qk.{what}"] = torch.cat(both)
    net.load_state_dict(held)
    return Port(module=net, runs="torch")
"""


@pytest.mark.parametrize(
    ("fault", "listed"), [pytest.param("", [], marks=pytest.mark.slow), ("1.01 *", ["patch's input"])]
)
def test_queries_and_keys_in_another_order_are_no_difference_beside_one(
    fault: str, listed: list[str], tmp_path: Path
) -> None:
    """As of a port whose rotary embedding takes halves, and not pairs; of fused weights nobody knows the order."""
    (tmp_path / "model.py").write_text(TURNED.replace("FAULT", ""))
    (tmp_path / "port.py").write_text(TURNED.replace("FAULT", fault))
    loaded = load_ports(f"{tmp_path}/model.py:reference", f"{tmp_path}/port.py:build", None, openers := Host())
    ours, theirs = loaded.settings([], [])
    result = run(Request("model", ours, theirs, ports=loaded, sites="all"), quiet, openers=openers)
    assert [d.place for d in differences(result)] == listed
