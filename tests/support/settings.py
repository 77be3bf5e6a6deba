"""The values of a setting that a test tries."""

from __future__ import annotations

from parity.settings import Backend, Setting, render


def tries(setting: Setting, backend: Backend, blocks: int = 4) -> tuple[str, ...]:
    """The values other than the backend's default that stand for all, whether or not it takes them today.

    Args:
        blocks: of the transformer, of which a cache skips all but the first and the last.
    """
    every = (*setting.kind.values, *(text.format(last=blocks - 1) for text in setting.examples))
    return tuple(text for text in every if text != render(setting.default_for(backend)))
