"""Everything that may differ between two sides: the catalogue of settings, and each side's values.

`catalogue.py` has one entry for each setting, with all that is known of it; the rest of the package reads it.
"""

from parity.settings.catalogue import AUTO, BITS, MODEL, SETTINGS, SPLASH_BLOCK
from parity.settings.kinds import Backend, DeepCache, Value, deep_cache, render
from parity.settings.lookup import BY_NAME, LAYOUT, NEUTRAL, changed_by, meaningless, remedy, sentence
from parity.settings.parse import parse
from parity.settings.setting import Advice, Capability, Setting
from parity.settings.values import Difference, Settings, differences, kernels, paired

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
