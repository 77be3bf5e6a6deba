"""Where a differing setting changes what is called or passed by design, so that a birth there is no fault by itself.

Whether such a difference does harm is told by noise_pred and latents, which no setting excuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

EXCUSES: Mapping[str, tuple[str, ...]] = {
    # No vision tokens: their projection is not called, their type embedding neither.
    "vision_states": (":in.image_embeds", "image_embedder", "image_embedder.*", "cond_type_embed"),
    # ByT5's embeddings enter through their own projection.
    "text.byt5_dtype": (":in.encoder_hidden_states_2", "context_embedder_2", "context_embedder_2.*"),
    # A quantity that one side keeps coarser, where it is made.
    "timestep_dtype": (":in.timestep", "time_embed", "time_embed.*", "*time_text_embed*"),
    "norm_dtype": ("*norm*",),
    "rope_dtype": ("rope", "rope.*"),
    "attention.softmax_dtype": ("*.attention",),
}
"""Setting -> globs over `module` or `module:port`."""


def excuses(settings: Iterable[str]) -> tuple[str, ...]:
    """The globs that these differing settings excuse."""
    return tuple(glob for setting in settings for glob in EXCUSES.get(setting, ()))
