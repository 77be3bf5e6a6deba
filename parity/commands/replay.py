"""`parity replay`: a golden's recorded inputs through this machine's modules."""

from __future__ import annotations

from typing import Annotated

import typer

from parity.commands.parts.options import GoldensModel, InputsFile, Judgement, OtherSide, Stage1
from parity.commands.parts.unfold import command
from parity.paths.worker.openers import Workers
from parity.report.comparison import Comparison


@command
def replay(
    golden: Annotated[str, typer.Argument(metavar="GOLDEN", help="Folder or URL of a golden with recorded inputs.")],
    one: OtherSide,
    output: Judgement,
    model: GoldensModel = None,
    stage1: Stage1 = None,
    inputs: InputsFile = None,
) -> int:
    """Run a golden's recorded inputs through this machine's modules.

    One module at a time: their local errors. Record the inputs with `parity record DIR --values
    'transformer_blocks.?:in'`. Exit codes as of `parity run`.
    """
    with output.sides(torchax=one.side == "candidate" and not one.pythons) as say, Workers(one.pythons) as openers:
        from parity.runs.replay.replay import ReplayRequest
        from parity.runs.replay.replay import replay as replay_golden

        ports, *both = one.load(model, openers)
        settings = both[one.role == "candidate"]
        settings.require_stages(("transformer",))
        request = ReplayRequest(
            golden=golden, settings=settings, side=one.role, model=model, stage1=stage1, ports=ports, inputs=inputs
        )
        result = replay_golden(request, openers, say)
    output.show(Comparison(result, details=output.details))
    return result.exit_code
