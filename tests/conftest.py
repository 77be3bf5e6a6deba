"""What every test needs before its libraries are imported: threads, devices, signals, a cache of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis

# The user's own cache is neither read nor written; a folder beside the tests keeps what is compiled for the next run.
os.environ["PARITY_CACHE"] = str(Path(__file__).parent.parent / ".cache" / "parity")

# Before torch is imported: on the tiny model two threads gain nothing, and where other processes hold the cores each of
# thousands of small parallel regions waits for them (measured: a tenfold slower run).
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests run on a CPU; with the TPU compiler installed JAX would look for chips first, one process at a time.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Nothing here computes for long, and compiling is most of what a fresh clone pays: a third of it without optimisations
# and with XLA's plain kernels in place of its fused ones, which are made through MLIR.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)

# On GitHub's machines `parity diff` prints a line more.
os.environ.pop("GITHUB_ACTIONS", None)

from tests.support.nursery import warm

# A shell that starts the suite with `nohup` or `&` hands down ignored signals, and so would every process started here.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(_number, signal.SIG_DFL)

# A comparison's workers are forked from a process that has imported torch and jax; it starts with the first of them.
warm()

# The same examples in every run: a commit is not to fail by what was drawn. `make fuzz` draws anew.
hypothesis.settings.register_profile("same", deadline=None, derandomize="FUZZ_EXAMPLES" not in os.environ)
hypothesis.settings.load_profile("same")
