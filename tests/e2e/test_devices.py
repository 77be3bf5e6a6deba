"""A torch side on a device of its own, as a TPU's native backend brings one: compared as any other, without a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.cli import Ran
from tests.support.fake_device import WRONG_AT, announce
from tests.support.models import NANO, checkpoint

PORT = """
import torch
from parity.models.folder import load_part
from parity.port import Case, Port

def build(case: Case) -> Port:
    module = load_part(case.folder, "transformer").to("fake")
    assert all(x.device.type == "fake" for x in module.parameters())
    return Port(module=module)
"""


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return announce(tmp_path_factory.mktemp("packages"))


def run(device: Path, *words: str, **environment: str) -> Ran:
    """`parity run`, where a package has brought the device."""
    paths = f"{device}{os.pathsep}{Path(__file__).parents[2]}"
    command = [sys.executable, "-m", "parity", "run", "--format", "json", "-m", str(checkpoint(NANO)), *words]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths, **environment}, capture_output=True, text=True, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_a_device_without_float64_is_compared_whole(device: Path) -> None:
    done = run(device, "-c", "device=fake", "--sites", "all", "--checks", "logic")
    assert done.code == 0, done.err
    sites = done.json["sites"]
    assert len(sites) > 100
    assert {site["verdict"] for site in sites} <= {"pass", "ignored"}
    assert all(site["floor"] is not None for site in sites if site["verdict"] == "pass")
    differing = {d["setting"]: d["candidate"] for d in done.json["differing_settings"]}
    assert differing == {"device": "fake", "attention.kernel": "sdpa"}  # flex attention is not for every device


def test_a_fault_of_the_device_is_found_at_its_module(device: Path) -> None:
    done = run(device, "-c", "device=fake", "--sites", "all", "--checks", "logic", **{WRONG_AT: "aten::gelu"})
    assert done.code == 1, done.err
    assert done.json["origin"]["introduced"] == "module"
    assert done.json["origin"]["site"].endswith((".act:out", ".act_fn:out", ".net.0:out")), done.json["origin"]


def test_a_port_that_moves_itself_to_a_device_stays_there(device: Path, tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(textwrap.dedent(PORT))
    done = run(device, "-p", f"{tmp_path / 'port.py'}:build", "--checks", "logic")
    assert done.code == 0, done.err
    assert len(done.json["sites"]) > 50


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-c", "device=nonsense"), "'device=nonsense': torch has no such device here"),
        (("-c", "device=Fake!"), "has no value 'Fake!'"),
        (("-r", "device=fake", "-c", "device=fake"), "floors are measured in float64, which 'fake' does not have"),
    ],
)
def test_a_device_that_cannot_serve_is_refused(device: Path, words: tuple[str, ...], said: str) -> None:
    done = run(device, *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_the_reductions_of_a_device_are_those_of_the_cpu(device: Path) -> None:
    program = """
import json, torch
from parity.hooks.reduce.on_torch import reduce, to_host_many
shapes = [(5,), (96, 40), (3000, 7), (0, 3)]
found = []
for shape in shapes:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if x.numel():
        x.view(-1)[:3] = torch.tensor([3e38, float("nan"), -float("inf")])
    for y in (x, x.to(torch.bfloat16), (x > 0), x.nan_to_num().clamp(-9, 9).to(torch.int64)):
        (m, s), (n, t) = to_host_many([reduce(y), reduce(y.to("fake"))])
        near = all(abs(a - b) <= 1e-6 * abs(a) for a, b in zip((m.mean, m.l2), (n.mean, n.l2)))
        same = (m.count, m.nan, m.inf, m.min, m.max) == (n.count, n.nan, n.inf, n.min, n.max)
        found.append(bool(near and same and ((s == t) | (abs(s - t) < 1e-4 * abs(s)) | ((s != s) & (t != t))).all()))
print(json.dumps(found))
"""
    paths = f"{device}{os.pathsep}{Path(__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * 16
