"""HunyuanVideo-1.5."""
