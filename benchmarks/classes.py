"""Every transformer class of diffusers, with its own tests' config and inputs: written otherwise, and with faults.

    python benchmarks/classes.py CHECKOUT [PART OF A NAME]...

`CHECKOUT` is a clone of diffusers. A class has tiny weights, moved at random so that no gate is zero. Its candidate has
the same weights, but linear layers, layer norms, SiLU and convolutions of patches that are written otherwise, as a port
has them: in float32 and in bfloat16. A third one has two faults, in the linear layers that stand at a quarter and at
three quarters of those that are called once: nobody chose where. State is kept in `.classes.json`, so that a stopped
run goes on.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
import stamp
import torch

import parity
from parity.compare.independent import differences
from parity.hooks.torchtools import mapped

NOT_MADE = "not made here"
LIMIT = 160
TRANSFORMERS = "tests.models.transformers"


class _Absent(ModuleType):
    """A module of helpers for tests, of which only the configs are run: classes are empty, decorators do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "torch_device":
            return "cpu"
        return type(name, (), {}) if name[0].isupper() else _decorates


def _decorates(*given: Any, **named: Any) -> Any:
    return given[0] if len(given) == 1 and callable(given[0]) else lambda function: function


def configs(checkout: Path, parts: list[str]) -> Iterator[tuple[str, Any]]:
    """The configs of the tests of transformers, by name."""
    sys.path.insert(0, str(checkout))
    sys.modules |= {name: _Absent(name) for name in ("tests.testing_utils", "tests.models.testing_utils")}
    for file in sorted((checkout / TRANSFORMERS.replace(".", "/")).glob("test_*.py")):
        try:
            module = importlib.import_module(f"{TRANSFORMERS}.{file.stem}")
        except Exception:
            continue
        for name, kind in vars(module).items():
            own = isinstance(kind, type) and kind.__module__ == module.__name__ and hasattr(kind, "get_dummy_inputs")
            if own and name.endswith("TesterConfig") and any(part in name for part in parts or [""]):
                yield name.removesuffix("TesterConfig"), kind


# --- a class


def outcome(kind: Any) -> stamp.Row:
    """What came of one class."""
    row: stamp.Row = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        kind.torch_dtype, kind.device = dtype, "cpu"
        try:
            model, inputs = _made(kind(), dtype)
        except Exception as error:
            row[name] = f"{NOT_MADE}: {type(error).__name__}: {error}"[:LIMIT]
            continue
        row[name] = _said(parity.compare(model, _rewritten(model), inputs))
        if dtype == torch.float32:
            at, bad = _faulty(model, inputs)
            listed = [d.place for d in differences(parity.compare(model, bad, inputs))]
            row |= {"faults": at, "listed": listed}
    return row


def _said(result: Any) -> str:
    return result.verdict if result.verdict == "pass" else f"{result.verdict}: {result.reason}"[:LIMIT]


def _made(config: Any, dtype: torch.dtype) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model in this dtype and what it can be called with: timesteps in float32, if the class takes them so."""
    torch.manual_seed(0)
    model = config.model_class(**config.get_init_dict()).eval()
    with torch.no_grad():
        for x in model.parameters():
            spread = 0.5 * float(x.std()) if x.ndim > 1 and x.numel() > 1 else 0.15
            x += torch.randn(x.shape) * (spread or 0.1)
    given, model = config.get_dummy_inputs(), model.to(dtype)

    def cast(x: Any) -> Any:
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    every = {name: mapped(cast, x) for name, x in given.items()}
    timed = {name: given[name] if "time" in name else x for name, x in every.items()}
    try:
        with torch.no_grad():
            model(**timed)
        return model, timed
    except RuntimeError:
        with torch.no_grad():
            model(**every)
        return model, every


class _Linear(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x @ self.weight.T
        return out if self.bias is None else out + self.bias


class _LayerNorm(torch.nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        axes, wide = tuple(range(-len(self.normalized_shape), 0)), x.float()
        mean = wide.mean(axes, keepdim=True)
        variance = ((wide * wide).mean(axes, keepdim=True) - mean * mean).clamp(min=0)
        out = (wide - mean) * torch.rsqrt(variance + self.eps)
        out = out if self.weight is None else out * self.weight.float()
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)


class _SiLU(torch.nn.SiLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)


class _Patches(torch.nn.Conv3d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kernel_size != self.stride or any(self.padding) or self.groups > 1:
            return super().forward(x)
        sizes = [n for size, patch in zip(x.shape[2:], self.kernel_size, strict=True) for n in (size // patch, patch)]
        patches = x.reshape(*x.shape[:2], *sizes).permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4)
        out = patches @ self.weight.flatten(1).T
        return (out if self.bias is None else out + self.bias).permute(0, 4, 1, 2, 3)


OTHERWISE = {
    torch.nn.Linear: _Linear, torch.nn.LayerNorm: _LayerNorm, torch.nn.SiLU: _SiLU, torch.nn.Conv3d: _Patches
}  # fmt: skip


def _rewritten(model: torch.nn.Module) -> torch.nn.Module:
    made = copy.deepcopy(model)
    for module in made.modules():
        module.__class__ = OTHERWISE.get(type(module), type(module))
    return made


def _faulty(model: torch.nn.Module, inputs: Mapping[str, Any]) -> tuple[list[str], torch.nn.Module]:
    """A copy with two faults, and where: a gain of 2 %, and a twentieth of each channel's neighbour added."""
    made, calls = copy.deepcopy(model), Counter[str]()
    hooks = [
        module.register_forward_hook(lambda module, args, out, name=name: calls.update([name]))
        for name, module in made.named_modules()
    ]
    with torch.no_grad():
        made(**inputs)
    for hook in hooks:
        hook.remove()
    once = [name for name, x in made.named_modules() if isinstance(x, torch.nn.Linear) and calls[name] == 1]
    at = [once[len(once) // 4], once[3 * len(once) // 4]]
    made.get_submodule(at[0]).register_forward_hook(lambda module, args, out: 1.02 * out)
    made.get_submodule(at[1]).register_forward_hook(lambda module, args, out: out + 0.05 * out.roll(1, -1))
    return at, made


# --- the page


HEAD = """# Classes: diffusers' transformers

`make classes CHECKOUT=FOLDER` renders it from `benchmarks/results/classes.json`. The folder is a clone of diffusers,
whose tests have a tiny config and inputs for each transformer. `parity.compare` compares each with one of the same
weights whose linear layers, layer norms, SiLU and convolutions of patches are written otherwise: anything but a pass is
a false alarm. Then with one that has two faults, in linear layers that nobody chose, which one comparison has to list.

"""


def render(kept: Mapping[str, Any]) -> str:
    """The page: counts, and whatever is not as it should be."""
    rows, lines, counts = kept["rows"], [], []
    for dtype in ("float32", "bfloat16"):
        made = {name: row[dtype] for name, row in rows.items() if not row[dtype].startswith(NOT_MADE)}
        counts.append(f"{sum(said == 'pass' for said in made.values())} of {len(made)} pass in {dtype}")
        lines += [f"- {name}, {dtype}: {row[dtype]}" for name, row in rows.items() if row[dtype] != "pass"]
    planted = {name: row for name, row in rows.items() if "faults" in row}
    found = sum(len({*row["faults"]} & {*row["listed"]}) for row in planted.values())
    more = sum(len({*row["listed"]} - {*row["faults"]}) for row in planted.values())
    counts.append(f"{found} of {2 * len(planted)} faults are listed, and {more} places that have none")
    for name, row in planted.items():
        if sorted(row["faults"]) != sorted(row["listed"]):
            lines.append(f"- {name}: {' and '.join(row['faults'])} have faults; listed: {', '.join(row['listed'])}")
    return HEAD + "\n".join([stamp.line(kept), "", "; ".join(counts) + ".", "", *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("parts", nargs="*", help="of the names of classes")
    given = parser.parse_args()
    state = stamp.State(Path(".classes.json"))
    for name, kind in configs(given.checkout, given.parts):
        print(name, state.row(name, outcome, kind), flush=True)
    if not given.parts:
        stamp.publish("classes", state.rows, render)


if __name__ == "__main__":
    main()
