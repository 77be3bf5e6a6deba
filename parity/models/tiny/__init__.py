"""Tiny checkpoints: real folders in diffusers layout, small enough for a laptop and wild enough to show a fault.

A tool that compares two programs needs a model that everybody has. These are made once, from seeds, without network,
and are then loaded with `from_pretrained` exactly as a user's own checkpoint is: nothing behind this module knows that
the weights are random. They are not what a fresh network starts from: that is so tame (gates at zero, uniform
attention, biases at zero) that most faults would leave no trace.

Weights are pinned by a test, so that figures measured on them stay comparable. To keep the pin on every machine they
are uniform numbers, scaled and shifted: integers over 2^24 and one IEEE rounding per operation, where a normal
generator's bytes depend on the CPU's vector unit. Each tensor has a seed of its own, taken from its name, so that
neither the order of construction nor an added tensor moves the others.

Cost: making one takes a few seconds and about 42 MB of disk (CogVideoX: 15) the first time, and nothing afterwards.
"""
