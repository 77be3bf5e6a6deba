"""A run of the stages that a request names: the transformer alone, or the chain of text, transformer and VAE."""

from __future__ import annotations

from parity.compare.result import Result
from parity.runs.compare import run
from parity.runs.request import Request, Say
from parity.runs.stream import Sink

STAGES = ("text", "transformer", "vae")


def run_stages(request: Request, say: Say, sink: Sink | None = None) -> Result:
    """Run the stages of a request and compare them.

    Raises:
        UsageError: bad input. InconclusiveError: a chosen site never fired, or a setting's code was not reached.
    """
    for settings in (request.reference, request.candidate):
        settings.require_stages(request.stages)
    if request.stages == ("transformer",):
        return run(request, say, sink)
    from parity.runs.stages.chain import run_chain

    return run_chain(request, say, sink)
