"""Tiny checkpoints: real folders in diffusers layout, small enough for a laptop and wild enough to show a fault.

A tool that compares two programs needs a model that everybody has. These are made once, from seeds, without network,
and are then loaded with `from_pretrained` exactly as a user's own checkpoint is: nothing behind this module knows that
the weights are random. They are not what a fresh network starts from: that is so tame (gates at zero, uniform
attention, biases at zero) that most faults would leave no trace.

Weights are pinned by a test, so that figures measured on them stay comparable. To keep the pin on every machine they
are uniform numbers, scaled and shifted: integers over 2^24 and one IEEE rounding per operation, where a normal
generator's bytes depend on the CPU's vector unit. Each tensor has a seed of its own, taken from its name, so that
neither the order of construction nor an added tensor moves the others.

Cost: making one takes a few seconds and about 42 MB of disk (CogVideoX: 15) the first time, and nothing afterwards.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError

from parity.cache import cache_dir
from parity.errors import UsageError

# Part of the folder's name: raise it whenever a byte of a checkpoint changes, so that no run mixes two of them.
_VERSION = 1


def ensure_tiny(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return the folder of a tiny checkpoint, making it first where it is not in the cache.

    It is built in a temporary folder and renamed into place, so a killed or a concurrent run never leaves or sees half
    a checkpoint. The caller's torch random state is left as it was.

    Args:
        name: of the model. make: writes its checkpoint into an empty folder.

    Returns:
        `cache_dir()/models/<name>-v<N>`, a complete checkpoint in diffusers layout with a `parity.json`.

    Raises:
        UsageError: the cache cannot be written.
    """
    folder = cache_dir() / "models" / f"{name}-v{_VERSION}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
        ) as own:
            building = pathlib.Path(own) / name
            building.mkdir()
            building.chmod(0o755)  # the temporary folder is its user's alone, the cache may be shared
            with torch.random.fork_rng(devices=[]):
                make(building)
            try:
                os.rename(building, folder)
            except OSError:
                # Another process was faster: its folder is the same, byte for byte.
                if not folder.is_dir():
                    raise
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"cannot write the cache folder {folder.parent}: {why}; set PARITY_CACHE to another"
        ) from error
    return folder


def save(pipeline: Any, defaults: Mapping[str, Any], folder: pathlib.Path) -> None:
    """Write a diffusers pipeline as a checkpoint, with the sizes and prompts of its `parity.json`."""
    pipeline.save_pretrained(folder)
    (folder / "parity.json").write_text(json.dumps(defaults, indent=2) + "\n", encoding="utf-8")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How the parameters whose name matches are drawn: uniform with this mean and standard deviation.

    Attributes:
        pattern: regular expression, searched in the parameter's name; the first rule that matches counts.
        std: standard deviation; for `fan_in` rules that of the output for an input of rms one.
        mean: mean, e.g. 1 for the weight of a norm.
        fan_in: whether `std` is divided by the square root of the inputs to one output.
    """

    pattern: str
    std: float
    mean: float = 0.0
    fan_in: bool = False


def seeded(name: str) -> torch.Generator:
    """A generator on the CPU whose numbers depend on a name alone."""
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big"))


def fill(module: torch.nn.Module, component: str, rules: Sequence[Rule]) -> None:
    """Overwrite every parameter of `module` in place by the first rule that matches its name.

    Args:
        module: float32, on the CPU.
        component: enters each tensor's seed beside its name, e.g. `transformer`.
        rules: must cover every parameter; one that none matches is a `LookupError`, a defect of this package.
    """
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            rule = next((rule for rule in rules if re.search(rule.pattern, name)), None)
            if rule is None:
                raise LookupError(f"no rule says how to draw {component}.{name}")
            std = rule.std / math.sqrt(parameter[0].numel()) if rule.fan_in else rule.std
            unit = torch.rand(parameter.shape, generator=seeded(f"{component}.{name}")) - 0.5
            # Two operations, not one fused multiply-add, whose single rounding would depend on the machine.
            parameter.copy_(unit.mul_(std * math.sqrt(12.0)).add_(rule.mean))


_NORMS = (Rule(r"norm[^.]*\.(weight|gamma)$", mean=1.0, std=0.2),)
_OTHERS = (Rule(r"\.weight$", std=1.0, fan_in=True), Rule(r"\.bias$", std=0.2))

TRANSFORMER_RULES = (
    # Logits of unit-rms queries and keys over the square root of the head dimension have standard deviation
    # mean(norm_q) * mean(norm_k): 1.3 * 1.3 = 1.7, attention that is neither uniform nor one-hot.
    Rule(r"norm_(added_)?[qk]\.weight$", mean=1.3, std=0.2),
    Rule(r"norm[^.]*\.linear\.weight$", std=0.8, fan_in=True),
    Rule(r"norm[^.]*\.linear\.bias$", std=0.5),
    *_NORMS,
    Rule(r"refiner_blocks\.\d+\.attn\.to_[qk]\.weight$", std=1.3, fan_in=True),
    Rule(r"x_embedder\.proj\.weight$", std=1.4, fan_in=True),  # half of the 65 input channels are zero
    # Half of what others get: two exact backends' sines of a timestep near 1000 differ by some 3e-6, which guidance
    # amplifies, and float32 paths have to stay well below 1e-5. What the timestep loses in size the bias makes up for.
    Rule(r"time(step)?_embedd(er|ing)\.linear_2\.weight$", std=0.8, fan_in=True),
    Rule(r"time(step)?_embedd(er|ing)\.linear_2\.bias$", std=0.6),
    Rule(r"(linear_2|linear_3|net\.2)\.weight$", std=1.6, fan_in=True),  # behind an activation that shrinks
    Rule(r"cond_type_embed\.weight$", std=0.7),
    *_OTHERS,
)

VAE_RULES = (
    *_NORMS,
    Rule(r"conv_y\.conv\.bias$", mean=1.0, std=0.1),
    Rule(r"decoder\.conv_out\.conv\.weight$", std=0.5, fan_in=True),
    Rule(r"\.bias$", std=0.1),
    *_OTHERS,
)


def text_rules(std: float) -> tuple[Rule, ...]:
    """Rules for a text encoder.

    Args:
        std: of queries and keys. T5 does not divide its logits by the root of the head dimension d, so that they have a
            standard deviation of std^2 * sqrt(d).
    """
    return (
        Rule(r"(shared|embed_tokens)\.weight$", std=1.0),
        *_NORMS,
        Rule(r"relative_attention_bias\.weight$", std=0.5),
        Rule(r"([qk]_proj|SelfAttention\.[qk])\.weight$", std=std, fan_in=True),
        Rule(r"(down_proj|DenseReluDense\.wo)\.weight$", std=1.6, fan_in=True),
        *_OTHERS,
    )


ANY_RULES = (
    Rule(r"norm[^.]*\.linear\.weight$", std=0.8, fan_in=True),
    *_NORMS,
    Rule(r"\.weight$", std=1.0, fan_in=True),
    Rule(r"", std=0.2),
)
"""For a model that nobody wrote rules for: no zero that would hide what lies behind it."""


def draw(module: torch.nn.Module, component: str) -> torch.nn.Module:
    """Draw all weights of a model by `ANY_RULES`, in float32, by their names alone; returns it."""
    fill(module.float(), component, ANY_RULES)
    return module
