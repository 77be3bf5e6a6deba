"""A torch side on a device of its own, as a TPU's native backend brings one: compared as any other, without a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.cli import cli
from tests.support.fake_device import announce
from tests.support.models import checkpoint

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


@pytest.mark.slow
def test_a_device_without_float64_is_compared_whole(device: Path) -> None:
    """By the command, where a package has brought the device."""
    paths = f"{device}{os.pathsep}{Path(__file__).parents[2]}"
    words = ["-m", str(checkpoint("wan")), "-c", "device=fake", "--sites", "all", "--checks", "logic"]
    command = [sys.executable, "-m", "parity", "run", "--format", "json", *words]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["sites"]) > 100
    assert {site["verdict"] for site in told["sites"]} <= {"pass", "ignored"}
    assert all(site["floor"] is not None for site in told["sites"] if site["verdict"] == "pass")
    assert {d["setting"]: d["candidate"] for d in told["differing_settings"]} == {"device": "fake"}


SEVERAL = """
import json, os, sys
from parity.errors import UsageError
from parity.paths.live import Host
from parity.runs.compare import run
from parity.runs.request import Request, load_ports
from tests.support.fake_device import WRONG_AT
from tests.support.lab import quiet

said = {}
for name, (ours, theirs, port, wrong) in json.loads(sys.argv[2]).items():
    os.environ[WRONG_AT] = wrong
    try:
        openers = Host()
        ports = load_ports(None, port or None, sys.argv[1], openers)
        settings = ports.settings(ours, theirs)
        request = Request(sys.argv[1], *settings, ports=ports, sites="all", checks="logic")
        found = run(request, quiet, openers=openers)
        said[name] = found.verdict, str(found.origin and found.origin.key.site), len(found.sites)
    except UsageError as error:
        said[name] = "refused", str(error), 0
print(json.dumps(said), file=open(sys.argv[3], "w"))
"""
"""Comparisons in one process, which has loaded the device as torch does: each in its own would import all anew."""

CASES = {
    "a candidate": ([], ["device=fake"], False, ""),
    "a fault": ([], ["device=fake"], False, "aten::gelu"),
    "a port": ([], [], True, ""),
    "no such device": ([], ["device=nonsense"], False, ""),
    "a reference": (["device=fake"], ["device=fake"], False, ""),
}


@pytest.fixture(scope="module")
def said(device: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, int]]:
    folder = tmp_path_factory.mktemp("devices")
    (folder / "port.py").write_text(textwrap.dedent(PORT))
    cases = {n: (*given, f"{folder / 'port.py'}:build" * ported, wrong) for n, (*given, ported, wrong) in CASES.items()}
    paths = f"{device}{os.pathsep}{Path(__file__).parents[2]}"
    words = [sys.executable, "-c", SEVERAL, str(checkpoint("wan")), json.dumps(cases), str(folder / "said.json")]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[str, str, int]] = json.loads((folder / "said.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "verdict", "at"),
    [
        ("a candidate", "pass", ("None",)),
        ("a fault", "fail", (".act_1:out",)),
        ("a port", "pass", ("None",)),
        ("no such device", "refused", ("'device=nonsense': torch has no such device here",)),
        ("a reference", "refused", ("floors are measured in float64, which 'fake' does not have",)),
    ],
)
def test_what_a_device_computes_or_cannot_is_said(
    said: dict[str, tuple[str, str, int]], name: str, verdict: str, at: tuple[str, ...]
) -> None:
    found, where, sites = said[name]
    assert (found, any(text in where for text in at)) == (verdict, True), where
    assert sites > 100 or verdict == "refused"


def test_a_device_of_no_name_is_refused() -> None:
    assert "has no value 'Fake!'" in cli("run", "-c", "device=Fake!", code=2).err


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
