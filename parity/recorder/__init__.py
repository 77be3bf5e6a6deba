"""Recording in somebody's own script: what a pipeline, or a loop of one's own, computes is observed where it runs.

    import parity

    with parity.record("gpu", pipe):
        video = pipe(prompt, num_inference_steps=50)

Nothing is replaced and nothing changes by a bit: hooks on the modules, and the methods of scheduler and VAE watched on
the way in and out. The recording is a golden, written step by step, for `parity diff`. Needs numpy, safetensors and
whatever the script itself computes with: torch, and jax where its tensors are torchax's.
"""
