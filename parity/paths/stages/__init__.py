"""Stages outside the loop (text encoders, VAE) as sides: what a checkpoint has, and how each is run and observed."""
