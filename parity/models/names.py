"""The built-in models' names, importable without torch."""

TINY_NAMES: tuple[str, ...] = ("tiny-hunyuan-video-1.5", "tiny-cogvideox-1.0", "tiny-cogvideox-1.5")
DEFAULT_MODEL = TINY_NAMES[0]
