"""The candidate: the reference's modules through torchax on JAX, compiled, on a mesh."""
