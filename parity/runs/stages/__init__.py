"""The stages around the loop: text encoders and VAE, and the chain of all three."""
