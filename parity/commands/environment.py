"""The libraries that a command runs on: whether they are there, and that they keep off the terminal."""

from __future__ import annotations

import os
import warnings

from parity.errors import UsageError


def quieten() -> None:
    """Keep the libraries' progress bars and warnings off the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    warnings.filterwarnings("ignore")


def require_extras(*, torchax: bool = True) -> None:
    """Raise UsageError with the command that installs what is missing; a reference alone needs no torchax."""
    import importlib.util

    needed = [("torch", "torch"), ("diffusers", "torch")]
    if torchax:
        needed += [("torchax", "torchax"), ("jax", "torchax")]
    for module, extra in needed:
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"this command needs {module}: pip install 'tpu-parity[{extra}]'")
    import diffusers
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
