"""All changes by name, in the order in which they are written down."""

from __future__ import annotations

import block_faults
import loop_faults
import mask_faults
import rotary_faults
import rounding_changes
import text_faults
import vae_faults
from change import Change

MODULES = (mask_faults, rotary_faults, block_faults, text_faults, vae_faults, loop_faults, rounding_changes)

CHANGES = {row.name: row for module in MODULES for row in vars(module).values() if isinstance(row, Change)}
