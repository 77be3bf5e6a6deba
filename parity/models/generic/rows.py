"""The padded text rows of a transformer that nobody wrote a line for, known from the mask among its inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from parity.hooks.rows import SEQUENCE, WHOLE, Part, RowFrame

MASKS = ("encoder_attention_mask", "encoder_hidden_states_mask")
"""Arguments that diffusers' transformers call the text's mask."""

TEXT_FRAME = "text"
_WORDS = ("context", "text", "txt", "caption", "encoder_hidden_states", "add_")


@dataclass(frozen=True, slots=True)
class TextRows:
    """Tensors [B, rows, ...] of as many rows as the text has are text; see `parity.hooks.rows.RowRule`.

    In which order a family joins image and text is unknown, so joint sequences are compared whole; where a mask of so
    many rows was given, it says which of them are read.

    Attributes:
        text: tokens. image: what the number of image tokens may be; empty where that is not known. Where it may be the
            text's, names decide.
    """

    text: int
    image: tuple[int, ...] = ()

    def parts(self, module: str, port: str, shape: Sequence[int]) -> tuple[Part, ...]:
        return self.paired(module, port, shape, ())

    def paired(self, module: str, port: str, shape: Sequence[int], masked: Collection[int]) -> tuple[Part, ...]:
        if len(shape) < 3 or "mask" in port:
            return WHOLE
        rows, said = shape[1], any(word in f"{module}.{port}" for word in _WORDS)
        if rows > self.text and rows in masked:
            return SEQUENCE
        is_text = rows == self.text or (rows < self.text and rows in masked)
        # What a joint mask covers beside the text is the image.
        image = self.image or tuple(n - self.text for n in masked if n > self.text)
        certain = bool(image) and rows not in image
        return (Part(frame=TEXT_FRAME),) if is_text and (said or certain) else WHOLE


def text_mask(condition: Mapping[str, torch.Tensor]) -> np.ndarray | None:
    """bool [tokens], True where a token is valid; None where there is no mask, or none that leaves a token out."""
    given = next((condition[name] for name in MASKS if name in condition), None)
    if given is None or given.ndim != 2:
        return None
    valid: np.ndarray = given[0].detach().cpu().to(torch.float32).numpy() > 0
    return None if valid.all() else valid


def frame_of_mask(valid: np.ndarray) -> RowFrame:
    """The frame in which the valid tokens stand first."""
    order = np.argsort(~valid, kind="stable")
    return RowFrame(order.astype(np.int32), valid[order].astype(np.float32))
