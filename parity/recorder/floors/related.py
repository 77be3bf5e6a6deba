"""What a script made of a tensor that it was given: where it lies in another, and what guidance made of predictions.

Problem. A script's loop is its own. What its next input differs by, where its latents differ by so much, depends on
what it does in between: it scales, packs them to tokens, appends the latents of an image or a mask, keeps the rows of a
condition, cuts them off again, combines two predictions by guidance and a norm.

How. None of that is asked for; it is read off the values. A tensor is looked for in another as a multiple of it, in any
batch, at either end of one longer axis, as it is or packed to tokens; or element by element, where a part of it is the
very same values. A guided prediction is fitted as a linear combination of the predictions: one for all of it (guidance,
whatever its formula), with the latents beside them (a denoiser's form), for each frame, channel or token (weights by
frame, norms by token). Where nothing fits, the combination that comes nearest gives the size of what is moved.

Cost. A pass over the values for each place that the shapes allow, mostly one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

FITS = 1e-2
"""Relative residual up to which a tensor counts as a multiple, or a combination, of others: 16 bits round by 4e-3."""
NEAR = 0.5
"""Relative residual up to which the nearest combination gives the size of what is moved."""
SHARE = 0.1
"""Share of the very same values from which a tensor counts as a part of another. Of unrelated values in bfloat16, about
one in 500 is the same by chance."""
LOST = 1024
"""Units in the last place up to which the rest of a combination is what its own arithmetic rounded. A denoiser's form
loses the more the smaller sigma is: (latents - denoised) / 0.002 in float32 is off by 3e-5."""
EACH = 8
"""Values for each weight that is fitted: fewer could be fitted by anything."""
FEW = 8
"""Values along each axis that are looked at first, before whole tensors are: at least so many, where there are."""
_PRIME = 7919
"""Places by which a rest is rolled for each run, so that it meets other values in each."""

Part = Callable[[torch.Tensor], torch.Tensor]
"""Takes a part of a tensor."""


def displaced(x: torch.Tensor, own: torch.Tensor, shift: torch.Tensor, *, around: bool = False) -> torch.Tensor | None:
    """What `x` differs by where `own` differs by `shift`, in float64; None where `own` is not found in it.

    Args:
        around: whether, where only some values are the very same, those around them move too: noise was added there.
    """
    for seen, moved in _views(x, own, shift):
        for part in _parts(x.shape, seen.shape):
            here, times = part(x), (x.shape[0] // seen.shape[0], *([1] * (seen.ndim - 1)))
            few = (slice(None), *(slice(None, None, max(1, n // FEW)) for n in seen.shape[1:]))
            if not _near(here[few], seen[few].repeat(times)):
                continue  # most tensors have nothing to do with each other
            by = _moved(here, seen.repeat(times), moved.to(torch.float64).repeat(times), around)
            if by is not None:
                found = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
                part(found).add_(by)
                return found
    return None


def _near(x: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether by a few of their values two tensors may have to do with each other."""
    return _factor(x, own, 3 * FITS) is not None or bool(_same(x, own).any())


def _moved(x: torch.Tensor, own: torch.Tensor, by: torch.Tensor, around: bool) -> torch.Tensor | None:
    """What `x` moves by where `own`, of its shape, moves: as a multiple of it, beside a constant (a decoder's shift),
    or where both have the same values."""
    factor = _factor(x, own, FITS)
    if factor is not None:
        return factor * by
    same = _same(x, own)
    if same.to(torch.float64).mean() >= SHARE:
        return by if around else by * same
    return None


def _same(x: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return (x == own.to(x.dtype)) & (x != 0)


def _factor(x: torch.Tensor, own: torch.Tensor, fits: float) -> torch.Tensor | None:
    """The factor that `x` is of `own`, beside a constant or without; None where it is none."""
    here, base = x.to(torch.float64), own.to(torch.float64)
    for y, z in ((here, base), (here - here.mean(), base - base.mean())):
        size = z.square().sum()
        factor = (y * z).sum() / size if size > 0 else size
        if factor != 0 and (y - factor * z).norm() <= fits * y.norm():
            return factor
    return None


def dithered(x: torch.Tensor, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Values in float64 rounded up or down to a narrower dtype at random, each as often as it lies near: what a cast
    makes of values that differ by much less than its last bit, where only those are known that were cast already. Zero
    stays zero."""
    generator = torch.Generator(x.device).manual_seed(seed)
    exponent = torch.frexp(x).exponent - 1
    last = torch.ldexp(torch.full_like(x, torch.finfo(dtype).eps), exponent)
    drawn = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device) - 0.5
    return torch.where(x == 0, x, x + drawn * last).to(dtype)


def resized(x: torch.Tensor, own: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """What `x` differs by where it was made of `own` nobody knows how, in float64: as much, relative to its size.

    Pipelines permute and unscale, cut padding frames off (CogVideoX-1.5), or decode a few frames at a time: the size of
    what is moved is kept, its place is not known.
    """
    moved = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    if not x.numel() or not own.numel():
        return moved
    size = float(own.to(torch.float64).square().mean().sqrt())
    factor = float(x.to(torch.float64).square().mean().sqrt()) / size if size > 0 else 1.0
    by = shift.to(torch.float64).flatten()
    return moved + factor * by.repeat(-(-x.numel() // by.numel()))[: x.numel()].reshape(x.shape)


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """How a script made its guided prediction.

    Attributes:
        guided: it. outputs: the predictions that it was made of. place: takes what of a prediction is guided, in its
            shape. weights: of each prediction, and of the latents where one more is there, as they broadcast; None
            where no combination comes near.
        exact: whether that is what the script computed. rounds: what it rounded there; None where that is not known.
    """

    guided: torch.Tensor
    outputs: Sequence[torch.Tensor]
    place: Part
    weights: torch.Tensor | None
    exact: bool
    rounds: torch.Tensor | None = None

    def moved(
        self, predictions: Sequence[torch.Tensor], latents: torch.Tensor, seed: int | None = None
    ) -> torch.Tensor:
        """What the guided prediction differs by, in float64, where its predictions and the latents differ by these.

        Args:
            seed: of the rounding of the script's own arithmetic; None for none.
        """
        predictions = _joined(predictions, self.guided)
        if self.weights is None:
            whole, by = (torch.cat([x.flatten() for x in given]) for given in (self.outputs, predictions))
            return resized(self.guided, whole, by)
        columns = [*map(self.place, predictions), latents][: len(self.weights)]
        found = torch.zeros(self.guided.shape, dtype=torch.float64, device=self.guided.device)
        for weight, x in zip(self.weights, columns, strict=True):
            found += weight * x.to(torch.float64)
        if self.rounds is not None and seed is not None:
            found += self.rounds.flatten().roll(_PRIME * (seed + 1)).reshape(found.shape)  # as large, elsewhere
        return found


def guidance(guided: torch.Tensor, outputs: Sequence[torch.Tensor], latents: torch.Tensor) -> Guidance | None:
    """How a guided prediction was made of a step's predictions; None where there are none.

    Args:
        outputs: of the step's calls, by branch, of one shape. latents: that the step was given.
    """
    if not outputs:
        return None
    outputs = _joined(outputs, guided)
    target = guided.to(torch.float64)
    nearest: tuple[float, Part, torch.Tensor | None] = (NEAR, lambda x: x, None)
    alike = all(x.shape == outputs[0].shape for x in outputs)
    for place in _taken(outputs[0].shape, guided.shape) if alike else ():
        columns = [place(x).to(torch.float64) for x in outputs]
        more = [latents.to(torch.float64)] if latents.shape == guided.shape else []
        for kept in _groupings(guided.shape):
            for given in [columns, [*columns, *more]] if more else [columns]:
                stacked = torch.stack(given)
                weights, rest = _fitted(stacked, target, kept)
                if weights is not None and rest <= FITS:
                    lost = target - (weights * stacked).sum(0) if rest <= LOST * _ulp(guided.dtype) else None
                    return Guidance(
                        guided=guided, outputs=outputs, place=place, weights=weights, exact=True, rounds=lost
                    )
                if weights is not None and not kept and rest <= nearest[0]:
                    nearest = rest, place, weights
    return Guidance(guided=guided, outputs=outputs, place=nearest[1], weights=nearest[2], exact=False)


def _joined(outputs: Sequence[torch.Tensor], guided: torch.Tensor) -> Sequence[torch.Tensor]:
    """Predictions in one, where what was taken for branches are prompts: a batch that nothing guides."""
    prompts = len(outputs) > 1 and outputs[0].ndim and sum(x.shape[0] for x in outputs) == guided.shape[0]
    return [torch.cat(list(outputs))] if prompts and outputs[0].shape[0] < guided.shape[0] else outputs


def _ulp(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _groupings(shape: torch.Size) -> Iterator[tuple[int, ...]]:
    """The axes along which weights may differ: none, one of them, or all but the last."""
    yield ()
    yield from ((axis,) for axis in range(1, len(shape)) if shape[axis] > 1)
    yield tuple(range(len(shape) - 1))


def _fitted(columns: torch.Tensor, target: torch.Tensor, kept: tuple[int, ...]) -> tuple[torch.Tensor | None, float]:
    """Least-squares weights of columns [k, *shape] for a target [*shape], and the relative residual.

    Args:
        kept: axes of the target along which weights may differ.
    """
    over = [axis for axis in range(target.ndim) if axis not in kept]
    each = math.prod(target.shape[axis] for axis in over)
    if not torch.isfinite(columns).all() or not torch.isfinite(target).all() or (kept and each < EACH * len(columns)):
        return None, math.inf
    gram = torch.stack([(columns * x).sum([axis + 1 for axis in over], keepdim=True) for x in columns])
    right = (columns * target).sum([axis + 1 for axis in over], keepdim=True)
    square, line = gram.flatten(2).permute(2, 0, 1).cpu(), right.flatten(1).T[..., None].cpu()
    solved = torch.linalg.lstsq(square, line).solution[..., 0]
    weights = solved.T.reshape(right.shape).to(target.device)
    size = target.norm()
    rest = (target - (weights * columns).sum(0)).norm()
    return weights, float(rest / size) if size > 0 else float(rest)


def _views(x: torch.Tensor, own: torch.Tensor, shift: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of both as they may lie in `x`: as they are, for each frame anew, packed to tokens (each, or four of a
    picture's to one), or with frames and channels changed over."""
    yield own, shift
    if x.ndim == own.ndim + 1:
        for axis in (1, 2):
            yield _repeated(own, axis, x.shape[axis]), _repeated(shift, axis, x.shape[axis])
    if x.ndim == 3 and own.ndim > 3:
        for channels in (1, 2)[: own.ndim - 3]:
            yield _tokens(own, channels), _tokens(shift, channels)
        if own.ndim == 4 and not (own.shape[2] % 2 or own.shape[3] % 2):
            yield _packed(own), _packed(shift)
    if x.ndim == own.ndim == 5:
        yield own.transpose(1, 2), shift.transpose(1, 2)


def _repeated(x: torch.Tensor, axis: int, times: int) -> torch.Tensor:
    return x.unsqueeze(axis).repeat_interleave(times, axis)


def _packed(x: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, 4 channels] of a picture [batch, channels, height, width], as Flux packs it."""
    b, c, h, w = x.shape
    return x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, c * 4)


def _tokens(x: torch.Tensor, channels: int = 1) -> torch.Tensor:
    """[batch, tokens, channels] of a tensor with its channels on another axis."""
    last = x.movedim(channels, -1)
    return last.reshape(x.shape[0], -1, last.shape[-1])


def _parts(shape: torch.Size, small: Sequence[int]) -> Iterator[Part]:
    """Views of a tensor of `shape` that a smaller one fills, once for each time that its batch goes into it."""
    if len(shape) != len(small) or len(shape) < 2 or not small[0] or shape[0] % small[0]:
        return
    longer = [axis for axis in range(1, len(shape)) if shape[axis] != small[axis]]
    if not longer:
        yield lambda x: x
    elif len(longer) == 1 and 0 < small[longer[0]] < shape[longer[0]]:
        (axis,) = longer
        for start in (0, shape[axis] - small[axis]):
            yield _narrowed(axis, start, small[axis])


def _narrowed(axis: int, start: int, length: int) -> Part:
    return lambda x: x.narrow(axis, start, length)


def _taken(shape: torch.Size, guided: torch.Size) -> Iterator[Part]:
    """What of a prediction may be guided, in the guided one's shape: all of it, its first or last channels (a learned
    variance follows them), tokens or frames, and tokens that are unpacked."""
    if shape[0] == guided[0]:
        yield from _parts(shape, guided)
    if len(shape) == 3 and len(guided) > 3 and shape[0] == guided[0]:
        for part in _parts(shape, (guided[0], math.prod(guided[2:]), guided[1])):
            yield _unpacked(part, guided)


def _unpacked(part: Part, guided: torch.Size) -> Part:
    return lambda x: part(x).reshape(guided[0], *guided[2:], guided[1]).movedim(-1, 1)
