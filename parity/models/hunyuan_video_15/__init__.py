"""HunyuanVideo-1.5."""

from parity.models.registry import Registered, register

register(
    Registered(
        title="HunyuanVideo-1.5",
        transformer="HunyuanVideo15Transformer3DModel",
        family="parity.models.hunyuan_video_15.family:HunyuanVideo15.of",
        tiny={"tiny-hunyuan-video-1.5": "parity.models.tiny.hunyuan_video_15:make"},
    )
)
