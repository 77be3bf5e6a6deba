"""Are causes named rightly? Faults that are settings, alone and in pairs, and faults that no setting is.

    python benchmarks/causes.py [--state FILE] [--markdown FILE]

For each fault the candidate (torchax) is run with it on tiny-hunyuan-video-1.5, float32, one step, and explained twice:
with its settings known (counterfactual) and from its records alone (signature). Unknown faults are the patches of
`fault_catalogue` that no setting does; from records alone they must be called unknown.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import fault_bench
import numpy as np
from fault_catalogue import FAULTS, Fault

from parity.compare.regress import common_keys, error_vector, noise_norm, search
from parity.diagnose.bisect_settings import plan
from parity.diagnose.known_faults import Simulated, known_faults
from parity.diagnose.shares import shares
from parity.diagnose.signatures import UNKNOWN
from parity.golden.records import StepRecords
from parity.paths.candidate import load_candidate
from parity.paths.inputs import make_inputs
from parity.paths.loop import denoise, prepare
from parity.settings import Settings, parse

PAIRS = (
    ("attention.mask=none", "refiner.mask=none"), ("attention.mask=zero_kv", "text.byt5_dtype=bfloat16"),
    ("attention.mask=none", "norm_dtype=bfloat16"), ("refiner.mask=none", "rope_dtype=bfloat16"),
    ("attention.mask=zero_kv", "refiner.mask=none"), ("norm_dtype=bfloat16", "rope_dtype=bfloat16"),
    ("attention.mask=segment_ids_first_row", "refiner.mask=none"), ("refiner.mask=none", "timestep_dtype=bfloat16"),
    ("attention.softmax_dtype=bfloat16", "text.byt5_dtype=bfloat16"), ("attention.mask=none", "dtype=bfloat16"),
)  # fmt: skip
SAME_AS_A_SETTING = {
    "mask_dropped", "mask_of_the_first_batch_row", "refiner_attention_without_mask", "softmax_in_bfloat16",
    "rotary_phase_in_bfloat16", "block_padding_unmasked", "norm_statistics_in_bfloat16", "guidance_in_bfloat16",
}  # fmt: skip
"""Patches that do what a setting does, in one block or in all."""


def take(known: fault_bench.Known, settings: Settings, fault: Fault | None = None) -> StepRecords:
    """The candidate's records of the first step."""
    ours = known.settings.replace(text_byt5_dtype=settings["text.byt5_dtype"])
    inputs, _ = make_inputs(known.family, known.case, ours, ours, steps=1, seed=0, stage1=None)
    side = load_candidate(known.family, known.case, settings, inputs)
    if fault is None:
        return next(iter(denoise(prepare(side), known.plan)))
    with fault.apply(side):
        return next(iter(denoise(prepare(side), known.plan)))


class Bench:
    """The reference, its known faults, and the two ways to explain a candidate."""

    def __init__(self) -> None:
        self.known = fault_bench.Known("float32", 1)
        known = self.known
        quiet = fault_bench.quiet
        self.simulated = Simulated(known.family, known.case, known.settings, 1, 0, 0, None, quiet)
        self.base = self.simulated.run(frozenset())
        names = known_faults(known.settings, known.family, known.case)
        self.runs = {name: self.simulated.run(frozenset({name})) for name in names}
        (self.truth,) = known.steps

    def signature(self, theirs: StepRecords) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
        keys = common_keys(self.truth, theirs, self.base)
        error, noise = error_vector(self.truth, theirs, keys), noise_norm(self.truth, keys)
        singles = {name: error_vector(self.base, run, keys) for name, run in self.runs.items()}
        found = search(error, singles, lambda f: error_vector(self.base, self.simulated.run(f), keys), noise)
        return (found.names if found.residual <= UNKNOWN else ()), singles

    def counterfactual(self, settings: Settings) -> tuple[str, ...]:
        keys = tuple(k for k in common_keys(self.truth) if k.site == "loop:noise_pred")
        noise = noise_norm(self.truth, keys)

        def run(swapped: Settings) -> np.ndarray:
            return error_vector(self.truth, take(self.known, swapped), keys)

        found = shares(plan(self.known.settings, settings), run, noise)
        return tuple(f"{s.swap.setting}={s.swap.candidate}" for s in found if not s.harmless)

    def settings_row(self, names: tuple[str, ...]) -> dict[str, Any]:
        settings = parse("torchax", names)
        theirs = take(self.known, settings)
        named, singles = self.signature(theirs)
        return {
            "truth": names,
            "counterfactual": self.counterfactual(settings),
            "signature": named,
            "alike": {n: [m for m, v in singles.items() if _alike(v, singles[n])] for n in names if n in singles},
        }

    def unknown_row(self, fault: Fault) -> dict[str, Any]:
        named, _ = self.signature(take(self.known, parse("torchax"), fault))
        return {"truth": (), "signature": named}


def _alike(a: np.ndarray, b: np.ndarray) -> bool:
    return float(np.linalg.norm(a - b)) <= 0.02 * float(np.linalg.norm(b))


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The table, and the shares that it adds up to."""
    singles = [r for r in rows.values() if len(r["truth"]) == 1]
    pairs = [r for r in rows.values() if len(r["truth"]) == 2]
    unknown = [r for r in rows.values() if not r["truth"]]

    def hit(row: dict[str, Any], kind: str) -> bool:
        found, truth = row[kind], row["truth"]
        return all(any(n in row["alike"].get(t, [t]) for n in found[: len(truth)]) for t in truth)

    out = ["# Causes", "", "Printed by `python benchmarks/causes.py`, tiny HunyuanVideo-1.5, float32, CPU.", ""]
    for label, some in (("single faults: right cause first", singles), ("pairs: both named", pairs)):
        for kind in ("counterfactual", "signature"):
            out.append(f"- {label}, {kind}: {sum(hit(r, kind) for r in some)} of {len(some)}")
    out.append(f"- unknown faults, called unknown: {sum(not r['signature'] for r in unknown)} of {len(unknown)}")
    out += ["", "| fault | counterfactual | signature |", "|---|---|---|"]
    for name, row in rows.items():
        out.append(
            f"| {name} | {', '.join(row.get('counterfactual', [])) or '-'} | {', '.join(row['signature']) or '-'} |"
        )
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, default=Path("causes.json"))
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    state = fault_bench.State(options.state)
    bench = Bench()
    for names in itertools.chain(((n,) for n in bench.runs), PAIRS):
        try:
            row = state.row(" + ".join(names), lambda names=names: bench.settings_row(names))  # type: ignore[misc]
        except Exception as error:
            print(f"{names}: not run on the candidate: {error}", flush=True)
            continue
        print(names, row["counterfactual"], row["signature"], flush=True)
    for fault in FAULTS:
        if fault.name in SAME_AS_A_SETTING or fault.at == "preflight" or fault.steps > 1:
            continue
        try:
            row = state.row(fault.name, lambda fault=fault: bench.unknown_row(fault))  # type: ignore[misc]
        except Exception as error:
            print(f"{fault.name}: {error}", flush=True)
            continue
        print(fault.name, "->", row["signature"], flush=True)
    if options.markdown:
        options.markdown.write_text(markdown(json.loads(options.state.read_text())))


if __name__ == "__main__":
    main()
