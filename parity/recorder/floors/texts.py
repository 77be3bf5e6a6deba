"""What a script's text encoders round by: the transformer's text is theirs, and is as far off as they are.

Problem. A transformer's call is repeated on the text it was given, so its text had no floor but its own last bit. An
encoder in bfloat16 is off by a thousand times that, and a right port that encodes its own text failed at
`encoder_hidden_states`.

How. Each call of an encoder is repeated as the transformer's are (`parity.recorder.floors.carried`), when it is made: a
script may drop its encoder before the transformer runs. What each row of its outputs differs by is held. A row that the
transformer is given is moved by that where it is one of these, bit for bit in its dtype, or several one behind the
other by channels: whatever was cut off, padded, repeated, put in another order or in a batch with others. A row that is
none of these (scaled, projected) stays as it was. Nothing of an encoder is recorded.

Cost: a forward of the encoder for each run, and in float64 a copy of its weights; of each call's hidden states and
pooled output a float32 copy on the host for each run, of up to 2^26 elements (1.3 GB).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from parity.errors import summary
from parity.hooks.calls import Call, mapped
from parity.hooks.rerun import rerun
from parity.recorder.compiled import eagerly, entry_of, plain
from parity.recorder.floors.runs import variants_of
from parity.recorder.methods import replaced

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
MOST = 1 << 26
"""Elements of one call's outputs that are held, the last ones first: 36 hidden states of 512 tokens and 2,560 channels
fit, of which a pipeline takes any."""

ALL = 2 * MOST
"""Elements that are held of all calls, the last ones."""

Rows = tuple[torch.Tensor, Mapping[str, torch.Tensor]]
"""An encoder's output [rows, channels], and by the name of a run what it differs by there, both on the host."""


class Texts:
    """The text encoders of one pipeline.

    Attributes:
        kinds: of floors that are measured, asked for at each call; empty for none. tell: says a line to the user.
    """

    _busy: ClassVar[bool] = False  # of all of them: two pipelines may share an encoder

    def __init__(self, kinds: Callable[[], Sequence[str]], tell: Callable[[str], None]) -> None:
        self.kinds, self.tell = kinds, tell
        self._rows: list[Rows] = []
        self._index: dict[tuple[torch.dtype, int], dict[bytes, tuple[int, int]]] = {}
        self._watched: set[int] = set()

    @contextlib.contextmanager
    def watching(self, pipe: Any) -> Iterator[None]:
        """Within it, what a pipeline's `encode_prompt` calls of its encoders is repeated.

        They are watched no longer than that: a script that compiles an encoder would compile the watching too.
        """
        own = getattr(pipe, "encode_prompt", None)
        if own is None:
            yield
            return

        @functools.wraps(own)
        def encode(*args: Any, **kwargs: Any) -> Any:
            with contextlib.ExitStack() as stack:
                for encoder in encoders_of(pipe):
                    if isinstance(encoder, torch.nn.Module) and self._begins(encoder):
                        stack.callback(self._watched.discard, id(encoder))
                        stack.enter_context(self._seen(encoder))
                return own(*args, **kwargs)

        with replaced(pipe, "encode_prompt", encode):
            yield

    def _begins(self, encoder: torch.nn.Module) -> bool:
        """Whether an encoder was not watched yet; it is from now on."""
        known = id(encoder) in self._watched
        self._watched.add(id(encoder))
        return not known

    def _seen(self, encoder: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """Within it, its calls are repeated, without the program that it may be compiled to."""
        name, module = entry_of(encoder), plain(encoder)
        own = getattr(encoder, name)

        def observed(*args: Any, **kwargs: Any) -> Any:
            if Texts._busy or not self.kinds() or not repeatable([args, kwargs]):
                return own(*args, **kwargs)
            given = mapped(torch.clone, args), mapped(torch.clone, dict(kwargs))
            output = own(*args, **kwargs)
            Texts._busy = True
            try:
                with eagerly(module):
                    self._called(module, Call("", 0, (), *given, None), output)
            except Exception as error:  # never the script's business
                self.tell(f"a text encoder's rounding is not known ({summary(error)}): the text has no floor of it")
            finally:
                Texts._busy = False
            return output

        return replaced(encoder, name, observed)

    def _called(self, encoder: torch.nn.Module, call: Call, output: Any) -> None:
        """Repeat a call in each run, and hold what its outputs differ by."""
        own = _outputs(output)
        if any(type(x) not in (torch.Tensor, torch.nn.Parameter) for x in own):
            return  # torchax's, or split over processes: a reference is in torch
        apart: list[dict[str, torch.Tensor]] = [{} for _ in own]
        for variant in variants_of(encoder, self.kinds()):
            try:
                with variant.around(encoder, 0):
                    made = _outputs(rerun(encoder, call, variant.dtype))
            except Exception as error:
                if variant.dtype is not torch.float64:
                    raise
                self.tell(f"a text encoder cannot be run in float64 here ({summary(error)})")
                continue
            for held, x, again in zip(apart, own, made, strict=True):
                held[variant.name] = _rows(again.to(torch.float64) - x.to(torch.float64)).to("cpu", torch.float32)
        self._rows += [(_rows(x).cpu(), held) for x, held in zip(own, apart, strict=True)]
        while sum(x.numel() for x, _ in self._rows) > ALL:
            del self._rows[0]  # of a prompt that was encoded long before
        self._index.clear()

    def moved(self, x: torch.Tensor, run: str) -> torch.Tensor | None:
        """`x` with the encoders' rows in it as another run gives them, in float64; None where it has none of theirs.

        Args:
            x: what the transformer is given, channels last. run: by its name.
        """
        widths = sorted({own.shape[1] for own, _ in self._rows if own.shape[1] <= x.shape[-1]}, reverse=True)
        if not widths:
            return None
        rows = _rows(x.detach())
        moved, any_found = rows.to(torch.float64), False
        for i, row in enumerate(_bytes(rows.cpu())):
            for at, width, output, j in self._pieces(row, x.dtype, widths):
                any_found = True
                shift = self._rows[output][1].get(run)
                if shift is not None:
                    moved[i, at : at + width] += shift[j].to(moved)
        return moved.reshape(x.shape) if any_found else None

    def _pieces(self, row: bytes, dtype: torch.dtype, widths: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
        """The encoders' rows that a row is made of, one behind the other: channel, width, output and row of each."""
        size, at = dtype.itemsize, 0
        while at * size < len(row):
            for width in widths:
                found = self._indexed(dtype, width).get(row[at * size : (at + width) * size])
                if found is not None:
                    yield at, width, *found
                    break
            else:
                width = widths[-1]  # a part that is nobody's
            at += width

    def _indexed(self, dtype: torch.dtype, width: int) -> dict[bytes, tuple[int, int]]:
        """Where each row of the outputs of this width is, by its bytes in this dtype."""
        key = dtype, width
        if key not in self._index:
            self._index[key] = {
                row: (i, j)
                for i, (own, _) in enumerate(self._rows)
                if own.shape[1] == width
                for j, row in enumerate(_bytes(own.to(dtype)))
            }
        return self._index[key]


_EARLY: weakref.WeakKeyDictionary[Any, Texts] = weakref.WeakKeyDictionary()
"""By pipeline, what was seen of its encoders before its recording began."""


def early(
    pipe: Any, kinds: Callable[[], Sequence[str]], tell: Callable[[str], None]
) -> contextlib.AbstractContextManager[None]:
    """A context that watches a pipeline's encoders before it is recorded: scripts encode first, and call it then."""
    if pipe not in _EARLY:  # a pipeline may register its components one after the other
        _EARLY[pipe] = Texts(kinds, tell)
    return _EARLY[pipe].watching(pipe)


def texts_of(pipe: Any, kinds: Sequence[str], tell: Callable[[str], None]) -> Texts:
    """What is known of a pipeline's encoders when its recording begins."""
    known = None if pipe is None else _EARLY.get(pipe)
    if known is None:
        return Texts(lambda: kinds, tell)
    known.kinds = lambda: kinds
    return known


def encoders_of(pipe: Any) -> list[Any]:
    """The text encoders of a pipeline."""
    return [encoder for encoder in (getattr(pipe, name, None) for name in ENCODERS) if encoder is not None]


def _outputs(output: Any) -> list[torch.Tensor]:
    """What of an encoder's output a pipeline may take: its tensors, and the last of its hidden states."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() and output.ndim > 1 else []
    values = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    nested = [x if isinstance(x, (tuple, list)) else [x] for x in values]
    found = {id(x): x for xs in nested for x in xs if isinstance(x, torch.Tensor)}  # the last state is there twice
    tensors = [x.detach() for x in found.values() if x.is_floating_point() and x.ndim in (2, 3)]
    room = itertools.accumulate((x.numel() for x in reversed(tensors)), initial=0)
    return [x for x, before in zip(reversed(tensors), room, strict=False) if before + x.numel() <= MOST]


def repeatable(x: Any) -> bool:
    """Whether a call may be repeated: a cache of keys and values, as text is generated with, would be written to."""
    if isinstance(x, Mapping):
        return all(map(repeatable, x.values()))
    if isinstance(x, (list, tuple)):
        return all(map(repeatable, x))
    return x is None or isinstance(x, (torch.Tensor, bool, int, float, str, torch.dtype, torch.device))


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])


def _bytes(rows: torch.Tensor) -> list[bytes]:
    """Each row's bytes; on the host."""
    raw = rows.contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in raw]
