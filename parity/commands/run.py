"""`parity run`: both sides on this machine."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.parts.choices import FORCINGS, ROUNDS, STAGES, one_of, some_of
from parity.commands.parts.judged import shown
from parity.commands.parts.like import LikeOption, alike
from parity.commands.parts.options import Generation, InputsFile, Judgement, Observed, Sides, choose
from parity.commands.parts.unfold import command
from parity.compare.result import Result
from parity.errors import UsageError
from parity.report.comparison import Comparison
from parity.report.output import tell


@command
def run(
    generation: Generation,
    sides: Sides,
    observed: Observed,
    output: Judgement,
    rounds: Annotated[
        str,
        one_of(
            ROUNDS, "structure: float32, dtype settings neutralised; precision: as given, against the float32 truth."
        ),
    ] = "both",
    forcing: Annotated[
        str,
        one_of(
            FORCINGS,
            "none: free run; step: each step starts from the reference's latents; module: each block is also run "
            "on the reference's inputs.",
        ),
    ] = "none",
    stages: Annotated[
        str | None,
        some_of(STAGES, "Some of these; default: transformer (vae with --stage2)."),
    ] = None,
    stage2: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Latents: a port's stage2_latents.safetensors, decoded on both sides."),
    ] = None,
    inputs: InputsFile = None,
    like: LikeOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the run in this folder.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out keeps.")] = False,
) -> int:
    """Run both sides, and report the first module that diverges.

    Settings are listed by `parity info settings`. Exit code 0: same, 1: diverged, 2: bad input, 125: cannot be judged.
    """
    if overwrite and out is None:
        raise UsageError("--overwrite replaces a kept run: give its folder with --out")
    chosen = parse_stages(stages, stage2)
    if "text" not in chosen:  # which judges the embeddings against the prompt's
        generation.require_one_input()
    generation, alike_to = alike(like, generation, {"--inputs": inputs, "--stage2": stage2})
    if like is not None and "text" in chosen:
        raise UsageError("with text among the --stages the prompt is encoded here: leave --like or text out")
    choose("--forcing", forcing, FORCINGS)
    choose("--rounds", rounds, ROUNDS)
    if stage2 is not None and (generation.stage1 is not None or generation.prompt is not None):
        raise UsageError("--stage2 takes neither --stage1 nor --prompt: its latents are already denoised")
    with output.sides(torchax=not sides.pythons) as say:
        from parity.commands.parts.keep import KeepRun
        from parity.runs.request import Request
        from parity.runs.stages.run import run_stages

        ports, reference, candidate = sides.load(generation.model)
        for settings in (reference, candidate):
            settings.require_stages(chosen)
        request = Request(
            model=str(sides.reference_path) if ports.alone else generation.name,
            reference=reference,
            candidate=candidate,
            steps=generation.steps,
            seed=generation.seed,
            stage1=generation.stage1,
            prompt=generation.prompt,
            sites=observed.sites,
            values=tuple(observed.values),
            forcing=forcing,
            rounds=rounds,
            inputs=inputs,
            ports=ports,
            stages=chosen,
            stage2=stage2,
            like=alike_to,
        )
        kept = None if out is None else KeepRun(out, request, overwrite)
        result = run_stages(request, say, kept)
        if kept is not None:
            result = result.noted(*kept.notes)

    def save(code: int) -> int:
        if kept is not None:
            kept.result(result)
            for problem in kept.problems:
                tell(f"parity: {problem}")
                code = code or UsageError.exit_code
        return code

    document = Comparison(result, following=_following(result, out, sides), details=output.details)
    return shown(output, document, save)


def _following(result: Result, out: Path | None, sides: Sides) -> tuple[str, ...]:
    """What to type after a run that differs."""
    where = None if out is None else shlex.quote(str(out))
    if not result.has_causes_to_find:
        return (f"parity report {where}   # the page",) if where and result.verdict == "fail" else ()
    if where is None:
        return ("this command with --out RUN, which keeps it; then: parity explain RUN",)
    named = {"--reference-path": sides.reference_path, "--candidate-path": sides.candidate_path}
    ports = "".join(f" {option} {shlex.quote(path)}" for option, path in named.items() if path is not None)
    return (f"parity explain {where}{ports}   # why", f"parity report {where}   # the page")


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
