"""CogVideoX 1.0 and 1.5."""

from parity.models.registry import Registered, register

register(
    Registered(
        title="CogVideoX",
        transformer="CogVideoXTransformer3DModel",
        family="parity.models.cogvideox.family:CogVideoX.of",
        tiny={
            "tiny-cogvideox-1.0": "parity.models.tiny.cogvideox:make_10",
            "tiny-cogvideox-1.5": "parity.models.tiny.cogvideox:make_15",
        },
    )
)
