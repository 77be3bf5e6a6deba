"""The consoles, under the name that `parity bisect` imports until it prints by `parity.report.output`."""

from __future__ import annotations

from parity.report.output import consoles as make_consoles

__all__ = ["make_consoles"]
