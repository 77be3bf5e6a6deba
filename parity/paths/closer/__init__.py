"""A side looked at closer: one module's call alone, activations patched, modules as steps."""
