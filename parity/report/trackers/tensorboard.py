"""TensorBoard, by tensorboardX: event files in a folder, without TensorFlow or torch."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from parity.errors import UsageError
from parity.report.tracked import Tracked
from parity.report.trackers import Target, tracker

_PLAIN = re.compile(r"[^\w.-]+")


@tracker("tensorboard")
def tensorboard(run: Tracked, to: Target) -> str:
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.summary_pb2 import Summary

    folder = Path(to.into or "tensorboard") / _PLAIN.sub("_", to.project) / _PLAIN.sub("_", run.name)
    if folder.exists() and any(folder.iterdir()):  # two runs in one folder are one curve that goes back and forth
        raise UsageError(f"--into: '{folder}' has a run already; remove it, or give another --name")
    with SummaryWriter(str(folder)) as writer:
        for scalar in run.scalars:
            writer.add_scalar(scalar.name, scalar.value, scalar.step)
        for name, text in {**run.texts, "settings": _table(run)}.items():
            writer.add_text(name, text)
        for image in run.images:
            width, height = struct.unpack(">II", image.png[16:24])
            picture = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=image.png)
            writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=image.name, image=picture)]), image.step)
    return f"tensorboard --logdir {folder.parent}"


def _table(run: Tracked) -> str:
    rows = "\n".join(f"| {name} | {value} |" for name, value in run.settings.items())
    return f"| setting | value |\n|---|---|\n{rows}"
