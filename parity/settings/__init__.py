"""Everything that may differ between two sides: the catalogue of settings, and each side's values.

`catalogue.py` has one entry for each setting, with all that is known of it; the rest of the package reads it.
"""

from parity.settings.catalogue import (
    AUTO,
    BITS,
    BY_NAME,
    LAYOUT,
    MODEL,
    NEUTRAL,
    SETTINGS,
    SPLASH_BLOCK,
    changed_by,
    meaningless,
    remedy,
    sentence,
)
from parity.settings.setting import Advice, Backend, Capability, Setting, Value, render
from parity.settings.settings import DeepCache, Difference, Settings, deep_cache, differences, kernels, paired, parse

__all__ = [
    "AUTO",
    "BITS",
    "BY_NAME",
    "LAYOUT",
    "MODEL",
    "NEUTRAL",
    "SETTINGS",
    "SPLASH_BLOCK",
    "Advice",
    "Backend",
    "Capability",
    "DeepCache",
    "Difference",
    "Setting",
    "Settings",
    "Value",
    "changed_by",
    "deep_cache",
    "differences",
    "kernels",
    "meaningless",
    "paired",
    "parse",
    "remedy",
    "render",
    "sentence",
]
