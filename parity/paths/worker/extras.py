"""What a process needs before it loads a model: libraries that are there and keep quiet."""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
import warnings

from parity.errors import UsageError

CHIPS = ("/dev/accel*", "/dev/vfio/[0-9]*")
"""Device files of TPU chips."""

GPUS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")
"""Device files of GPUs: of NVIDIA's, of AMD's, of either under Windows."""


def quieten() -> None:
    """Keep libraries' progress bars and warnings off a terminal that is ours."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    if not _any(CHIPS):
        # With the TPU compiler installed (extra `tpu`) JAX looks for chips: not in a service that is not there, and
        # without waiting for another process that does the same.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        if sys.platform == "linux" and not _any(GPUS):  # nor at all, where it can only find none: it prints a screenful
            os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Two sides share the cores: a thread that spins while it waits for work holds up the other side's (measured on two
    # cores: three times the time of a run). Read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.filterwarnings("ignore")


def _any(patterns: tuple[str, ...]) -> bool:
    return any(glob.glob(pattern) for pattern in patterns)


def require_one_process() -> None:
    """Refuse to be one of several processes that torchrun started: each would write the same golden.

    Raises:
        UsageError: this is one of them.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError(
            f"torchrun started {os.environ['WORLD_SIZE']} of this command: start it once, it starts the processes of "
            "its sides itself. A reference that is split over processes is not supported; a script that runs under "
            "torchrun is recorded by `torchrun ... -m parity record DIR --script FILE --floors none`"
        )


def check_extras(*, torchax: bool = True) -> None:
    """Raise UsageError with the command that installs what is missing; a reference alone needs no torchax."""
    needed = [("torch", "torch"), ("diffusers", "torch")]
    if torchax:
        needed += [("torchax", "torchax"), ("jax", "torchax")]
    for module, extra in needed:
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"this command needs {module}: pip install 'tpu-parity[{extra}]'")


def require_extras() -> None:
    """`check_extras` of a reference, and the libraries imported and told to be quiet."""
    check_extras(torchax=False)
    import diffusers
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    # Its errors are exceptions as well, reported in one line: the log would say them a second time, in many.
    diffusers.utils.logging.set_verbosity(diffusers.utils.logging.FATAL)
    diffusers.utils.logging.disable_progress_bar()
