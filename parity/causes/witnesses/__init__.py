"""Witnesses: what each can tell of the evidence; `parity.causes.explain` asks them."""
