"""What is computed: model families, their attention, text encoders and VAE, tiny checkpoints; each setting's effect.

May import hooks, golden and settings.
"""
