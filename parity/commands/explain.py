"""`parity explain`: the causes of a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.keep import last_run
from parity.commands.options import GoldensModel, Judgement, Port, Prompt, ReferencePort, command, unwritten
from parity.compare.result import Result
from parity.errors import Say, UsageError
from parity.paths.plan import Role
from parity.paths.worker.process import Workers
from parity.redact import typed_command
from parity.report.comparison import Comparison
from parity.report.formats import render


@command
def explain(
    output: Judgement,
    first: Annotated[
        str | None, typer.Argument(metavar="RUN|REFERENCE", help="A kept run, or the reference golden.")
    ] = None,
    second: Annotated[str | None, typer.Argument(metavar="CANDIDATE", help="The candidate golden.")] = None,
    model: GoldensModel = None,
    prompt: Prompt = None,
    port: Port = None,
    reference_port: ReferencePort = None,
) -> int:
    """Find the causes of a difference.

    Of the last run, of a kept one, or of two goldens. Exit codes as of `parity diff`. Name a run's ports again.
    """
    where = str(last_run()) if first is None else first
    # Two goldens are explained as far as this machine can: without torch by what they show themselves.
    with output.sides(extras=second is None) as say:
        result = explained(where, second, model, prompt, {"reference": reference_port, "candidate": port}, say)
    asked = [x for name, value in (("-m", model), ("-p", prompt)) if value is not None for x in (name, value)]
    following = _following(result, [x for x in (first, second) if x is not None], asked)
    document = Comparison(result, explained=True, following=following, details=output.details)

    kept = Path(where, "explain.json") if second is None else None  # for `parity report`
    return output.judged(document, unwritten(("RUN", kept, lambda: render(document, "json"))))


def explained(
    where: str, candidate: str | None, model: str | None, prompt: str | None, ports: Mapping[Role, str | None], say: Say
) -> Result:
    """The causes of a difference.

    Args:
        where: a kept run; or the reference golden, with `candidate`. model, prompt: only of two goldens. ports: only of
            a kept run, by role.

    Raises:
        UsageError: no such run or golden, or a model or a prompt beside a kept run.
    """
    from parity.causes.explain import ExplainRequest, explain as find_causes, of_run

    if candidate is None and (model, prompt) != (None, None):
        raise UsageError("a kept run holds its own model and prompt: leave them out")
    with Workers() as openers:
        if candidate is None:
            request = of_run(Path(where), openers, ports)
        else:
            request = ExplainRequest(reference=where, candidate=candidate, model=model, prompt=prompt)
        return find_causes(request, openers, say)


def _following(result: Result, places: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """What to type once the causes are known: what confirms the first of them, and the page.

    Args:
        places: the goldens, or the kept run; none of the last one. asked: options.
    """
    if not result.causes:
        return ()
    confirm = result.causes[0].confirm
    page = f"{typed_command('parity', 'report', places=places)}   # the page, with these causes"
    if len(places) > 1:
        page = typed_command("parity", "explain", *asked, "--format", "html", places=places)
        page = f"{page} > explain.html   # the page"
    # The page first: a run takes the place of the last one.
    return (page, *([f"{confirm}   # passes, if this is the cause"] if confirm else []))
