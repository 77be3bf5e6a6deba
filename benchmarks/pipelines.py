"""Every pipeline of diffusers' own tests, recorded as it is: no bit changes, and another rounding is no divergence.

    python benchmarks/pipelines.py CHECKOUT [PART OF A NAME]...

`CHECKOUT` is a clone of diffusers, whose tests make each pipeline of tiny random weights. What they would download is
made here: tokenizers of single characters, T5 encoders of two layers. Each pipeline runs by itself, then within
`parity.record`, and once more, recorded, with every linear layer's sum added in two halves. `parity diff` compares the
recordings. State is kept in `.pipelines.json`, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
import diffusers.utils.import_utils
import numpy as np
import stamp
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import parity
from parity.compare.diff import diff
from parity.errors import ParityError
from parity.hooks.methods import replaced
from parity.hooks.torchtools import leaves

LEFT_OUT = ("Slow", "Memory", "Nightly", "Config", "Cache", "LoRA", "IPAdapter")
"""Of a class's name: the same pipeline with other options, or no pipeline of its own."""
NOT_MADE = "not made here"
SEED, LIMIT = 0, 160
LINEAR = torch.nn.functional.linear


def stand_ins() -> None:
    """Put what is made here in the place of what is downloaded, and of packages that only other tests need."""
    expand = SimpleNamespace(expand=lambda *args, **kwargs: lambda function: function)
    for name, held in (("parameterized", expand), ("requests_mock", None), ("ftfy", lambda text: text)):
        sys.modules.setdefault(name, ModuleType(name))
        vars(sys.modules[name]).setdefault({"ftfy": "fix_text"}.get(name, name), held)
    diffusers.utils.import_utils._ftfy_available = True
    tokenizers = [name for name in dir(transformers) if "Tokenizer" in name and not name.startswith("PreTrained")]
    for name in tokenizers:
        getattr(transformers, name).from_pretrained = _tokenizer
    for kind, config in (("T5EncoderModel", "T5Config"), ("UMT5EncoderModel", "UMT5Config")):
        getattr(transformers, kind).from_pretrained = _made(getattr(transformers, kind), getattr(transformers, config))
    transformers.AutoConfig.from_pretrained = lambda *args, **kwargs: transformers.T5Config(**T5)


T5 = {"vocab_size": 1103, "d_model": 32, "d_ff": 37, "num_layers": 2, "num_heads": 4, "d_kv": 8}


def _made(kind: Any, config: Any) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(SEED)
        return kind(config(**T5)).eval()

    return make


def _tokenizer(*args: Any, **kwargs: Any) -> Any:
    names = ["<pad>", "</s>", "<unk>", "<s>", *map(chr, range(33, 127))]
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=77, **special)


def scenes(checkout: Path, parts: list[str]) -> Iterator[tuple[str, Any]]:
    """The tests that make a pipeline, by file and class; what cannot be imported here is left out."""
    for file in sorted((checkout / "tests" / "pipelines").glob("*/test_*.py")):
        name = ".".join(file.relative_to(checkout).with_suffix("").parts)
        if parts and not any(part in name for part in parts):
            continue
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit):
            continue
        for kind in vars(module).values():
            own = isinstance(kind, type) and kind.__module__ == name and hasattr(kind, "get_dummy_components")
            if own and hasattr(kind, "pipeline_class") and not any(word in kind.__name__ for word in LEFT_OUT):
                yield f"{file.stem} {kind.__name__}", kind


def scene(kind: Any) -> stamp.Row:
    """What came of one pipeline."""
    try:
        test = kind("setUp") if hasattr(kind, "setUp") else kind()
        pipe = test.pipeline_class(**test.get_dummy_components())
        pipe.set_progress_bar_config(disable=True)
        plain = _ran(test, pipe)
    except (Exception, SystemExit) as error:
        return {"outcome": NOT_MADE, "reason": f"{type(error).__name__}: {error}"[:LIMIT]}
    try:
        return _compared(test, pipe, plain)
    except ParityError as error:
        return {"outcome": "refused", "reason": str(error)[:LIMIT]}
    except Exception as error:  # a defect, shown as such
        return {"outcome": "crashed", "reason": f"{type(error).__name__}: {error}"[:LIMIT]}


def _compared(test: Any, pipe: Any, plain: Any) -> stamp.Row:
    with tempfile.TemporaryDirectory() as folder:
        golden, other = Path(folder) / "golden", Path(folder) / "other"
        for run in parity.record(golden, pipe, runs=1):
            made = _ran(test, pipe)
            if run.first and not _same(plain, made):
                return {"outcome": "other bits", "reason": ""}
        with replaced(torch.nn.functional, "linear", _halves), parity.record(other, pipe, like=golden):
            _ran(test, pipe)
        found = diff(golden, other)
    return {"outcome": found.verdict, "reason": "" if found.verdict == "pass" else found.reason[:LIMIT]}


def _ran(test: Any, pipe: Any) -> Any:
    torch.manual_seed(SEED)
    taken = inspect.signature(test.get_dummy_inputs).parameters.values()
    given = ["cpu"] if any(p.default is p.empty for p in taken) else []
    return pipe(**test.get_dummy_inputs(*given))


def _halves(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    half = x.shape[-1] // 2
    return LINEAR(x[..., :half], weight[:, :half]) + LINEAR(x[..., half:], weight[:, half:], bias)


def _same(a: Any, b: Any) -> bool:
    pairs = list(zip(leaves(a, ""), leaves(b, ""), strict=True))
    return bool(pairs) and all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True) for (_, x), (_, y) in pairs)


HEAD = """# Pipelines: diffusers' own, recorded

`make pipelines CHECKOUT=FOLDER` renders it from `benchmarks/results/pipelines.json`. The folder is a clone of
diffusers, whose tests make each of its pipelines of tiny random weights. Each runs by itself, then within
`parity.record`, and once more, recorded, with the sums of all linear layers added in two halves. The two recordings are
the same but for rounding: anything but a pass of `parity diff` is a false alarm or has its reason here. *Other bits*:
the recorded run gave something else than the one by itself.

"""


def render(kept: Mapping[str, Any]) -> str:
    """The page: counts, and whatever did not pass."""
    rows = kept["rows"]
    made = {name: row for name, row in rows.items() if row["outcome"] != NOT_MADE}
    failed = {name: row for name, row in made.items() if row["outcome"] != "pass"}
    counts = (
        f"{len(made)} pipelines were recorded, {len(made) - len(failed)} pass; {len(rows) - len(made)} not made here."
    )
    lines = [f"- {name}: {row['outcome']}: {row['reason']}" for name, row in failed.items()]
    return HEAD + "\n".join([stamp.line(kept), "", counts, "", *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("parts", nargs="*", help="of the names of files")
    given = parser.parse_args()
    sys.path.insert(0, str(given.checkout))
    stand_ins()
    state = stamp.State(Path(".pipelines.json"))
    for name, kind in scenes(given.checkout, given.parts):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = state.row(name, scene, kind)
        print(name, found["outcome"], found["reason"], flush=True)
    if not given.parts:
        stamp.publish("pipelines", state.rows, render)


if __name__ == "__main__":
    main()
