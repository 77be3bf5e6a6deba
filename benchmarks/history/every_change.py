"""All changes by name."""

from __future__ import annotations

from block_faults import BLOCK_FAULTS
from glue_faults import GLUE_FAULTS
from mask_faults import MASK_FAULTS
from rotary_faults import ROTARY_FAULTS
from rounding_changes import ROUNDING_CHANGES
from schedule_faults import SCHEDULE_FAULTS
from text_faults import TEXT_FAULTS
from vae_faults import VAE_FAULTS

CHANGES = {
    change.name: change
    for change in (
        *MASK_FAULTS, *ROTARY_FAULTS, *BLOCK_FAULTS, *TEXT_FAULTS, *VAE_FAULTS, *SCHEDULE_FAULTS, *GLUE_FAULTS,
        *ROUNDING_CHANGES,
    )
}  # fmt: skip
