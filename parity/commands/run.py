"""`parity run`: checks the options, runs, prints, keeps."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

from parity.compare.reason import Note
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.report.console import make_consoles
from parity.report.json_report import dumps
from parity.report.progress import progress
from parity.report.terminal import print_result
from parity.settings import parse

FORCINGS = ("none", "step", "module")
STAGES = ("text", "transformer", "vae")
ROUNDS = ("both", "structure", "precision")


def run_command(
    *,
    model: str | None,
    steps: int,
    reference: list[str],
    candidate: list[str],
    rounds: str,
    forcing: str,
    sites: str,
    values: list[str],
    stages: str | None,
    stage1: Path | None,
    stage2: Path | None,
    prompt: str | None,
    seed: int,
    out: Path | None,
    as_json: bool,
    inputs: Path | None = None,
    reference_path: str | None = None,
    candidate_path: str | None = None,
    path_timeout: float = 60.0,
) -> int:
    """Run both paths and print the comparison; returns the exit code.

    Raises:
        ParityError: see `parity.runs.stages.run_stages`.
    """
    paths = reference_path is not None or candidate_path is not None
    if not paths:
        ours, theirs = parse("torch", reference), parse("torchax", candidate)
    chosen = parse_stages(stages, stage2)
    check_common(steps=steps, seed=seed, stage1=stage1, prompt=prompt, encoded="text" in chosen)
    if forcing not in FORCINGS:
        raise UsageError(f"--forcing takes {', '.join(FORCINGS)}, found '{forcing}'")
    if rounds not in ROUNDS:
        raise UsageError(f"--rounds takes {', '.join(ROUNDS)}, found '{rounds}'")
    if stage2 is not None and (stage1 is not None or prompt is not None):
        raise UsageError("--stage2 takes neither --stage1 nor --prompt: its latents are already denoised")
    quieten()
    console, errors = make_consoles()
    with progress(errors, quiet=as_json) as say:
        say("loading torch and diffusers")
        require_extras()
        from parity.commands.keep import KeepRun
        from parity.commands.paths import load_paths
        from parity.runs.pairing import Request
        from parity.runs.ports import NO_PORTS
        from parity.runs.stages import run_stages

        ports = NO_PORTS
        if paths:
            ports, ours, theirs = load_paths(reference_path, candidate_path, model, reference, candidate, path_timeout)
        for settings in (ours, theirs):
            settings.require_stages(chosen)
        request = Request(
            str(reference_path) if ports.alone else model or DEFAULT_MODEL,
            ours,
            theirs,
            steps,
            seed,
            stage1,
            sites,
            tuple(values),
            forcing,
            prompt,
            rounds,
            inputs,
            ports,
            chosen,
            stage2,
        )
        sink = None if out is None else KeepRun(out, request)
        result = run_stages(request, say, sink)
        if sink is not None:
            result = replace(result, notes=(*result.notes, *map(Note, sink.notes)))
            sink.result(result)
    if as_json:
        print(dumps(result))
    else:
        print_result(result, console)
    return result.exit_code


def parse_stages(text: str | None, stage2: Path | None) -> tuple[str, ...]:
    """The stages of a run, in their order.

    Raises:
        UsageError: an unknown stage, or a port's latents given to other stages than the VAE.
    """
    if text is None:
        return ("vae",) if stage2 is not None else ("transformer",)
    named = [name.strip() for name in text.split(",")]
    unknown = [name for name in named if name not in STAGES]
    if unknown:
        raise UsageError(f"--stages takes {', '.join(STAGES)}, comma-separated; found '{unknown[0]}'")
    if stage2 is not None and set(named) != {"vae"}:
        raise UsageError("--stage2 decodes a port's latents and runs no other stage; leave --stages out")
    return tuple(name for name in STAGES if name in named)


def check_common(*, steps: int, seed: int, stage1: Path | None, prompt: str | None, encoded: bool = False) -> None:
    """Options that `run` and `record` share.

    Args:
        encoded: whether the prompt is encoded beside a stage-1 file, to judge it.

    Raises:
        UsageError: one is out of range, or two exclude each other.
    """
    if steps < 1:
        raise UsageError(f"--steps must be at least 1, found {steps}")
    if not 0 <= seed < 2**63:
        raise UsageError(f"--seed must be from 0 to 2^63 - 1, found {seed}")
    if stage1 is not None and prompt is not None and not encoded:
        raise UsageError("--stage1 and --prompt exclude each other: embeddings are already encoded")


def quieten() -> None:
    """Keep libraries' progress bars and warnings off a terminal that is ours."""
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
