"""`Sides.load`, under the name that `parity bisect` imports until it takes the group."""

from __future__ import annotations

from parity.commands.options import Sides
from parity.runs.ports import Ports
from parity.settings import Settings


def load_paths(
    reference_path: str | None,
    candidate_path: str | None,
    model: str | None,
    reference: list[str],
    candidate: list[str],
    timeout: float,
) -> tuple[Ports, Settings, Settings]:
    """See `Sides.load`."""
    sides = Sides(
        reference=reference,
        candidate=candidate,
        reference_path=reference_path,
        candidate_path=candidate_path,
        path_timeout=timeout,
    )
    return sides.load(model)
