"""A comparison's result as a notebook and `print` show it."""

from __future__ import annotations

import html
from dataclasses import fields
from typing import Self

from parity.compare import result as compared
from parity.report.card import card, context
from parity.report.comparison import Comparison
from parity.report.document import lines
from parity.report.formats import render


class Result(compared.Result):
    """`parity.compare.result.Result`, which prints as its card and shows itself in a notebook."""

    __slots__ = ()

    @classmethod
    def of(cls, found: compared.Result) -> Self:
        """A result, shown."""
        return cls(**{f.name: getattr(found, f.name) for f in fields(found)})

    @property
    def passed(self) -> bool:
        """Whether the verdict is `pass`: what cannot be judged has not passed."""
        return self.verdict == "pass"

    @property
    def card(self) -> str:
        """The verdict, the first divergence, the likeliest cause and what they rest on, one fact a line."""
        return "\n".join(line for section in (card(self), context(self)) for line in lines(section))

    def __str__(self) -> str:
        return self.card

    def _repr_html_(self) -> str:
        """The page of `parity report` in a frame of its own: its own script runs there alone, by the page's policy, and
        reaches nothing of the notebook."""
        page = render(Comparison(self, explained=bool(self.causes)), "html")
        style = "width: 100%; height: 32em; border: 0"
        return f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" style="{style}"></iframe>'
