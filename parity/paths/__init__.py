"""Who computes it: the torch reference, the torchax candidate, a port; the denoising loop, floors, meshes.

May import models, hooks, golden, settings and `parity.port`; not compare.
"""
