"""A script as two of JAX's processes, its weights and latents spread over both: each observes, the first one writes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("torchax")

from parity.compare.diff import diff
from parity.golden import Golden

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
import jax, numpy as np, torch, torchax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from diffusers import FlowMatchEulerDiscreteScheduler
import parity

where, how, coordinator, rank = sys.argv[1:]
if how != "alone":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator_address=coordinator, num_processes=2, process_id=int(rank))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

    def forward(self, x):
        x = self.up(x)
        return self.down(x * 1.01 if how == "wrong" else x) / 2

class Vae:  # of JAX's arrays, as a Flax one
    def decode(self, z):
        return jax.numpy.tanh(z)

net, scheduler, vae = Net(), FlowMatchEulerDiscreteScheduler(), Vae()
scheduler.set_timesteps(2)
x = torch.ones(700, 4) * torch.arange(4)
parts = dict(transformer=net, scheduler=scheduler, sites="all", values=["up:out"])
def loop(x):
    for t in scheduler.timesteps:
        x = scheduler.step(net(x), t, x, return_dict=False)[0]
    return x

if how == "alone":
    with torch.no_grad():
        for _ in parity.record(where, **parts):
            scheduler.set_timesteps(2)
            loop(x)
    raise SystemExit

env, mesh = torchax.default_env(), Mesh(np.array(jax.devices()), ("tp",))
def put(x, *spec):
    held, sharding = x.detach().numpy(), NamedSharding(mesh, PartitionSpec(*spec))
    spread = jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])
    return torchax.tensor.Tensor(spread, env)

specs = {"up.weight": ("tp", None), "up.bias": ("tp",), "down.weight": (None, "tp"), "down.bias": ()}
net.load_state_dict({name: put(w, *specs[name]) for name, w in net.state_dict().items()}, assign=True)
if how != "eager":
    parts["transformer"] = net = torchax.compile(net)
with env, torch.no_grad(), parity.record(where, **parts, vae=vae):
    if how == "damaged" and rank == "0":  # what the first one alone meets
        open(where, "w").close()
    made = loop(put(x, "tp"))
    vae.decode(made.jax())
total = jax.jit(jax.numpy.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))
print("made by", rank, float(np.asarray(total(made.jax()))))
"""


def processes(folder: Path, where: str, how: str) -> list[subprocess.CompletedProcess[str]]:
    """Two of them on the loopback, the first one first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "JAX_PLATFORMS": "cpu"}
    (folder / "script.py").write_text(SCRIPT)
    begun = [
        subprocess.Popen(
            [sys.executable, "script.py", where, how, coordinator, str(rank)],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=300) for process in begun]
    finally:
        for process in begun:
            process.kill()
    return [subprocess.CompletedProcess([], p.returncode, *texts) for p, texts in zip(begun, told, strict=True)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one process, in torch."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "gpu", "alone", "", "0"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder / "gpu"


@pytest.mark.parametrize(("how", "origin"), [("compiled", None), ("eager", None), ("wrong", "down:in.input")])
def test_tensors_of_two_processes_are_whole(how: str, origin: str | None, reference: Path, tmp_path: Path) -> None:
    first, second = processes(tmp_path, "tpu", how)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "process 1 of 2 observes what the first one records" in second.stderr
    golden = Golden.open(tmp_path / "tpu")
    assert (golden.complete, golden.steps, golden.provenance.shard) == (True, (-1, 0, 1), (0, 1))
    assert "decode:out" in {r.key.site for r in golden.read_step(-1).records}
    counts = {r.key.site: r.moments.count for r in golden.read_step(1).records if r.moments}
    assert (counts["up:out"], counts["loop:noise_pred"]) == (700 * 6, 700 * 4)
    found = diff(reference, tmp_path / "tpu")
    assert found.verdict == ("fail" if origin else "pass"), found.reason
    assert (None if found.origin is None else found.origin.key.site) == origin


def test_golden_that_cannot_be_written_leaves_no_process_waiting(tmp_path: Path) -> None:
    first, second = processes(tmp_path, "tpu", "damaged")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "recording to tpu ended in step 0" in first.stderr
    ours, theirs = (p.stdout.split()[-4:] for p in (first, second))
    assert (ours[:3], theirs[:3]) == (["made", "by", "0"], ["made", "by", "1"])
    assert ours[3] == theirs[3]
