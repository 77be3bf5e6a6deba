"""What `parity explain` was asked for: two goldens, or a run that was kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from parity.errors import UsageError
from parity.files import read_text
from parity.golden.records import Key
from parity.paths.plan import Role
from parity.runs.kept import ports_of
from parity.runs.request import NO_PORTS, Ports
from parity.runs.sides import Openers
from parity.settings import NEUTRAL

_MOST_BYTES = 1 << 30
"""Of a document of a kept run; a site takes about a kilobyte."""
_NOT_TOLD = (OSError, ValueError, LookupError, TypeError, RecursionError)
"""What reading a document raises that is another than a run writes."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What `parity explain` was asked for.

    Attributes:
        reference, candidate: goldens. kept: the kept run's folder where they are of one, whose settings are known.
        model: in place of the golden's. stage1: the embeddings both were recorded with, where they were given a file.
        prompt: the prompt, where it was not the model's own.
        rounding: (setting, candidate's value) of the differing settings that the round of these goldens neutralised.
        ports, inputs: of the kept run; see `parity.runs.request.Request`.
    """

    reference: str
    candidate: str
    kept: Path | None = None
    model: str | None = None
    stage1: Path | None = None
    prompt: str | None = None
    rounding: tuple[tuple[str, str], ...] = ()
    ports: Ports = NO_PORTS
    inputs: Path | None = None

    def looked_at(self, origin: Key) -> Key:
        """The first divergence; of a kept run the one inside it that the run came to when it looked closer."""
        if self.kept is None:
            return origin
        try:
            told = json.loads(read_text(self.kept / "result.json", _MOST_BYTES))["origin"]
            site, step, call = str(told["site"]), int(told["step"]), int(told["call"])
        except _NOT_TOLD:
            return origin
        inside = not origin.module or site.startswith(f"{origin.module}.")
        return replace(origin, site=site, call=call) if inside and step == origin.step else origin


def of_run(where: Path, openers: Openers, named: Mapping[Role, str | None] | None = None) -> ExplainRequest:
    """The request for a kept run (`parity run --out DIR`): its last round.

    Args:
        openers: who imports its ports, once they are seen to be those that ran. named: ports that the command names.

    Raises:
        UsageError: the folder is no kept run.
    """
    try:
        told = json.loads(read_text(where / "request.json", _MOST_BYTES))
        stage1, prompt = told["stage1"], told["prompt"]
        differing = json.loads(read_text(where / "result.json", _MOST_BYTES))["differing_settings"]
        rounding = tuple((str(d["setting"]), str(d["candidate"])) for d in differing if d["setting"] in NEUTRAL)
    except _NOT_TOLD:
        raise UsageError(f"'{where}' is no kept run: make one with `parity run --out DIR`") from None
    at = where / "precision" if (where / "precision").is_dir() else where
    if not (at / "reference").is_dir():
        raise UsageError(f"'{where}' holds no records: it ended in preflight; its result.json says why")
    stage = Path(stage1) if isinstance(stage1, str) else None
    given = prompt if isinstance(prompt, str) else None
    left = rounding if at == where else ()
    model, inputs, ports = ports_of(told, openers, named)
    return ExplainRequest(str(at / "reference"), str(at / "candidate"), where, model, stage, given, left, ports, inputs)
