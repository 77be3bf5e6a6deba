"""Witnesses, one file each; `parity.causes.witness` registers and finds them."""
