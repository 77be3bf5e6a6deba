"""A comparison's result as a notebook and `print` show it."""

from __future__ import annotations

import html
import math
from dataclasses import fields
from typing import Self

from parity.compare import result as compared
from parity.report.comparison import Comparison, card, context
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

    def metrics(self) -> dict[str, float]:
        """Numbers for an experiment tracker, `wandb.log(result.metrics())`; what was not measured is left out.

        Returns:
            `passed`: 1 or 0. `failed_tensors`: how many are beyond their floors. `worst_ratio`: the largest difference,
            in floors. Of `noise_pred` and `latents` at each step, `step_0/noise_pred/rel_l2`, `.../floor` and
            `.../ratio`; and `step_0/bits`, the leading bits in which noise_pred agrees.
        """
        ratios = [site.distance.ratio for site in self.sites if not math.isnan(site.distance.ratio)]
        found = {
            "passed": float(self.passed),
            "failed_tensors": float(sum(site.verdict == "fail" for site in self.sites)),
            "worst_ratio": max(ratios, default=math.nan),
        }
        for step in self.steps:
            at = f"step_{step.step}"
            found[f"{at}/bits"] = step.bits
            for name, distance in (("noise_pred", step.noise_pred), ("latents", step.latents)):
                for field in fields(distance):
                    found[f"{at}/{name}/{field.name}"] = getattr(distance, field.name)
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def __str__(self) -> str:
        return self.card

    def _repr_html_(self) -> str:
        """The page of `parity report` in a frame of its own: its own script runs there alone, by the page's policy, and
        reaches nothing of the notebook."""
        page = render(Comparison(self, explained=bool(self.causes)), "html")
        style = "width: 100%; height: 32em; border: 0"
        return f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" style="{style}"></iframe>'
