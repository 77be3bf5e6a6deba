"""The words of parity's reports, each with its meaning: the glossary of a page."""

from __future__ import annotations

WORDS: tuple[tuple[str, str], ...] = (
    ("reference, candidate", "the two paths that are compared: the trusted one, and the one that is judged"),
    ("site", "a place where a value is observed: a module's input or output, or a value of the loop (noise_pred)"),
    ("branch", "the guidance branch: cond, uncond; batched branches are split and compared by name"),
    ("difference", "relative L2: the norm of candidate minus reference over the norm of the reference"),
    ("floor", "the difference at a site that rounding alone explains, measured on the reference"),
    ("ratio", "difference over floor; a site fails above 3x"),
    ("bits", "leading bits in which noise_pred agrees, of those that its dtype has (24 in float32, 8 in bfloat16)"),
    ("first divergence", "the first site, in execution order, where a difference is introduced"),
    ("introduced at the input", "the input differs although its producer agrees: layout, order, a mask, None"),
    ("introduced in the module", "its inputs agree and its output differs"),
    ("propagated", "a difference that comes from one before it"),
    ("local", "against what the reference makes of the candidate's own values, so that nothing is propagated"),
    ("harmless", "a declared setting explains the difference, and noise_pred and latents stay within their floors"),
    ("ignored", "padding rows that no valid token attends to; they never fail a run"),
    ("not compared", "inside a port, tensors that do not line up on both sides; what follows from them decides"),
    ("inconclusive", "no floor says how much is rounding, or something could not be observed: never a pass"),
    ("logic check", "both sides in float32, so that only wrong logic is left"),
    ("precision check", "both sides as given, against the float32 truth: what the working dtype costs"),
    ("preflight", "what is compared before any forward: weights, inputs, noise, schedule"),
    ("cause", "a setting or a measured fact that explains a share of the difference; parity explain names them"),
    ("golden", "records on disk, with floors and provenance, that later runs are compared with"),
    ("chain", "frames decoded from each side's own latents; by itself: both decoders fed the reference's"),
    ("row bin", "a part of a tensor's rows in their order, so that a difference can be placed: which frames or tokens"),
)
"""(word, meaning), in the order in which a reader of a report meets them."""
