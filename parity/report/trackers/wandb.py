"""Weights & Biases. Its own environment (WANDB_MODE, WANDB_API_KEY, ...) holds as in any script."""

from __future__ import annotations

import io
from collections import defaultdict
from typing import Any

from parity.report.tracked import Tracked
from parity.report.trackers import Target, tracker


@tracker("wandb")
def wandb(run: Tracked, to: Target) -> str:
    import wandb as library
    from PIL import Image

    mode: Any = "offline" if to.offline else None
    config = {**run.settings, **run.texts}
    with library.init(project=to.project, name=run.name, dir=to.into, mode=mode, config=config) as logged:
        by_step: dict[int, dict[str, Any]] = defaultdict(dict)
        for scalar in run.scalars:
            by_step[scalar.step][scalar.name] = scalar.value
        for image in run.images:
            by_step[image.step][image.name] = library.Image(Image.open(io.BytesIO(image.png)))
        for step in sorted(by_step):
            logged.log(by_step[step], step=step)
        logged.summary.update(run.texts)
        return str(logged.url or logged.dir)
