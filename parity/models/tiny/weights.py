"""Drawing the weights of a tiny checkpoint: uniform numbers by rules over parameter names, a seed for each tensor.

See `parity.models.tiny` for why they are uniform, and why each tensor has a seed of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Sequence

import torch


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
            digest = hashlib.sha256(f"{component}.{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
            unit = torch.rand(parameter.shape, generator=generator) - 0.5
            # Two operations, not one fused multiply-add, whose single rounding would depend on the machine.
            parameter.copy_(unit.mul_(std * math.sqrt(12.0)).add_(rule.mean))


def t5_rules(std: float) -> tuple[Rule, ...]:
    """Rules for a T5 encoder.

    Args:
        std: of queries and keys. T5 does not divide its logits by the root of the head dimension d, so that they have a
            standard deviation of std^2 * sqrt(d).
    """
    return (
        Rule(r"(shared|embed_tokens)\.weight$", std=1.0),
        Rule(r"layer_norm\.weight$", mean=1.0, std=0.2),
        Rule(r"relative_attention_bias\.weight$", std=0.5),
        Rule(r"SelfAttention\.[qk]\.weight$", std=std, fan_in=True),
        Rule(r"DenseReluDense\.wo\.weight$", std=1.6, fan_in=True),
        Rule(r"\.weight$", std=1.0, fan_in=True),
    )


ANY_RULES = (
    Rule(r"norm[^.]*\.linear\.weight$", std=0.8, fan_in=True),
    Rule(r"norm[^.]*(\.norm)?\.(weight|gamma)$", std=0.2, mean=1.0),
    Rule(r"\.weight$", std=1.0, fan_in=True),
    Rule(r"", std=0.2),
)
"""For a model that nobody wrote rules for: no zero that would hide what lies behind it."""


def draw(module: torch.nn.Module, component: str) -> torch.nn.Module:
    """Draw all weights of a model by `ANY_RULES`, in float32, by their names alone; returns it."""
    fill(module.float(), component, ANY_RULES)
    return module
