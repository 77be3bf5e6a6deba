"""A script under torchrun: the first process records what is whole in it; of what is split each records its share."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("diffusers")

from parity.compare.diff import diff
from parity.errors import UsageError
from parity.golden import Golden
from tests.recorder.test_script import model, script

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
import parity

how, where = sys.argv[1], sys.argv[2]
if how != "alone":
    torch.distributed.init_process_group("gloo")
rank = 0 if how == "alone" else torch.distributed.get_rank()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

    def forward(self, x):
        if how in MESH:
            x = self.up(distribute_tensor(x, mesh, [Replicate(), Replicate()])).full_tensor()
            return self.down(x) / 2
        x = self.down(self.up(x))
        if how not in ("split", "unsaid", "alone"):
            torch.distributed.all_reduce(x)  # as sequence parallel attention speaks to the others
        return x / 2

net, scheduler = Net(), FlowMatchEulerDiscreteScheduler()
MESH = {"first axis": (True, False), "second axis": (False, True)}  # of two: which split the weights
if how in MESH:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    places = [Shard(0) if split else Replicate() for split in MESH[how]]
    for name, p in list(net.up.named_parameters()):
        net.up.register_parameter(name, torch.nn.Parameter(distribute_tensor(p.data, mesh, places)))
if how in ("split", "unsaid"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    up = ColwiseParallel(use_local_output=how == "unsaid")
    parallelize_module(net, init_device_mesh("cpu", (2,)), {"up": up, "down": RowwiseParallel()})
options = {"stop_after": 1} if how == "early" else {}
scheduler.set_timesteps(3)
x = torch.ones(700, 4) * torch.arange(4)
recording = parity.record(where, transformer=net, scheduler=scheduler, sites="all", **options)
def loop(x):
    scheduler.set_timesteps(3)
    for i, t in enumerate(scheduler.timesteps):
        if how == "killed" and i == 2:
            torch.distributed.barrier()  # the first process has ended its step, however slow it is
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        x = scheduler.step(net(x), t, x, return_dict=False)[0]
with torch.no_grad():
    if how in ("floors", "alone"):
        for _ in recording:
            loop(x)
    else:
        with recording:
            loop(x)
print("made by", rank, flush=True)
if how != "alone":
    torch.distributed.destroy_process_group()  # else torch may abort as the interpreter ends (pytorch#190489)
"""


def torchrun(folder: Path, *program: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    """Processes on the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--master-addr", "127.0.0.1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [sys.executable, *command, "--master-port", str(port), *program],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def recorded(folder: Path, how: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    return torchrun(folder, "script.py", how, "golden", count=count)


def test_first_process_records(tmp_path: Path) -> None:
    done = recorded(tmp_path, "plain")
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", "made by 0", "made by 1"]), done.stderr
    assert "process 1 of 2 does not record: the first one does" in done.stderr
    golden = Golden.open(tmp_path / "golden")
    assert (golden.complete, golden.steps) == (True, (0, 1, 2))


def test_what_would_leave_others_waiting_is_refused(tmp_path: Path) -> None:
    done = recorded(tmp_path, "early")
    assert done.returncode == 1  # torchrun's own
    assert "parity.record: one of 2 processes cannot leave the loop early" in done.stderr
    assert not (tmp_path / "golden").exists()


def test_body_of_one_of_several_processes_runs_once(tmp_path: Path) -> None:
    done = recorded(tmp_path, "floors")
    assert (done.returncode, done.stdout.count("made by")) == (0, 2), done.stderr
    assert not Golden.open(tmp_path / "golden").read_step(0).floors


@pytest.mark.parametrize(("how", "count"), [("split", 2), ("first axis", 4), ("second axis", 4)])
def test_shares_of_a_split_model_add_up_to_what_one_process_records(tmp_path: Path, how: str, count: int) -> None:
    """Over a mesh of two axes each block counts once."""
    done = recorded(tmp_path, how, count)
    assert done.returncode == 0, done.stderr
    assert "golden is the golden that they make up" in done.stderr
    shares = [Golden.open(tmp_path / "golden" / f"shard-{i}") for i in range(count)]
    assert [x.provenance.shard for x in shares] == [(i, count) for i in range(count)]
    subprocess.run([sys.executable, "script.py", "alone", "reference"], cwd=tmp_path, check=True, timeout=300)
    found = diff(str(tmp_path / "reference"), str(tmp_path / "golden"))
    assert found.verdict == "pass", found.reason
    assert {"up:out", "down:in.input"} <= {d.key.site for d in found.sites if d.verdict == "pass"}


def test_share_that_nothing_says_is_one_is_refused(tmp_path: Path) -> None:
    assert recorded(tmp_path, "unsaid").returncode == 0
    with pytest.raises(UsageError, match="do not add up at transformer step 0 cond up:out: both hold the whole of it"):
        diff(tmp_path / "golden", tmp_path / "golden")


def test_process_that_is_killed_leaves_whole_steps(tmp_path: Path) -> None:
    assert recorded(tmp_path, "killed").returncode == 1
    golden = Golden.open(tmp_path / "golden")
    assert (golden.complete, golden.steps) == (False, (0, 1))
    golden.read_step(1)


def test_script_without_an_edit_is_recorded_by_the_first_process(tmp_path: Path) -> None:
    """The command of docs/two-machines.md, of a script that joins nobody itself."""
    document = (Path(__file__).parents[2] / "docs" / "two-machines.md").read_text()
    words = re.findall(r"`torchrun --nproc-per-node 2 (-m parity record [^`]+ generate\.py[^`]+)`", document)[0].split()
    script(tmp_path).rename(tmp_path / "generate.py")
    done = torchrun(tmp_path, *words, "--", model())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("made (1, 9, 32, 32, 3)") == 2
    assert done.stderr.count("process 1 of 2 does not record") == 1
    assert Golden.open(tmp_path / "golden").complete


def test_command_that_torchrun_starts_twice_is_refused(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "-m", "parity", "record", "golden", "--model", "tiny-cogvideox-1.0")
    assert "parity: torchrun started 2 of this command: start it once" in done.stderr
    assert "exitcode  : 2" in done.stderr
    assert not (tmp_path / "golden").exists()
