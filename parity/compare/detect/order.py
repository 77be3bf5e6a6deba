"""Predictions that hold the reference's values in another order: unpatchified otherwise, or with an axis turned round.

Problem. Where the model's inputs differ too, its output differs anyhow, and that its values stand in other places is
one more fault, which mending the inputs does not mend.

How. The candidate's prediction is put in each order that a port is known to give it. One counts where it is far nearer
to the reference's than as it is (cosines, since other inputs leave less than all in common).

Cost. Some ten passes over a prediction, at the first step that differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from parity.compare.detect.held import Seen, named
from parity.compare.result import Cause
from parity.records import LOOP

NEAR, NEARER = 0.5, 0.3
"""Least cosine in the right order, and by how much it is above that of the values as they are."""
FEW = 256
"""Elements below which some order is near by chance."""
PATCH = 2
_AXES = ("batch", "channels", "frames", "rows", "columns")


def reordered(seen: Seen) -> Iterator[Cause]:
    """One cause where a branch's prediction, or the only one, is the reference's in another order."""
    for branch in ("cond", "uncond", ""):
        pair = seen.pair(f"{LOOP}:noise_pred", branch)
        if pair is None or pair[0].size < FEW or pair[0].ndim != 5 or not all(np.isfinite(x).all() for x in pair):
            continue
        ours, theirs = pair
        plain = _cosine(ours, theirs)
        near = {name: _cosine(ours, x) for name, x in _orders(theirs)}
        best = max(near, key=lambda name: near[name], default="")
        if best and near[best] >= NEAR and near[best] >= plain + NEARER:
            text = f"the prediction holds the reference's values in another order: {best}"
            yield named(text, "order", "", best, near[best], fix="undo it where the output is unpatchified", at=":out")
            return


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.vdot(a, b)) / size if size else 0.0


def _orders(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The values [B, C, T, H, W] in other orders, with what is wrong with those in which they came."""
    for axis in range(1, 5):
        if x.shape[axis] > 1:
            yield f"{_AXES[axis]} from last to first", np.flip(x, axis)
    if x.shape[3] == x.shape[4]:
        yield "rows for columns", x.swapaxes(3, 4)
    if x.shape[3] % PATCH or x.shape[4] % PATCH:
        return
    batch, channels, frames, height, width = x.shape
    patches = x.reshape(batch, channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    taken = patches.transpose(0, 2, 3, 5, 1, 4, 6)  # [B, T, H / p, W / p, C, p, p]
    sizes = {"channels": channels, "row": PATCH, "column": PATCH}
    right = tuple(sizes)
    # Who unpatchified otherwise read a patch's values, laid out as C x p x p or p x p x C, as if in another order.
    for laid, read in itertools.permutations(itertools.permutations(right), 2):
        flat = taken.transpose(0, 1, 2, 3, *(4 + right.index(name) for name in read)).reshape(*taken.shape[:4], -1)
        again = flat.reshape(*taken.shape[:4], *(sizes[name] for name in laid))
        back = again.transpose(0, 1, 2, 3, *(4 + laid.index(name) for name in right))
        put = back.transpose(0, 4, 1, 2, 5, 3, 6).reshape(x.shape)
        yield f"a patch's {' x '.join(laid)} was taken for {' x '.join(read)}", put
