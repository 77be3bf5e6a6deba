"""Search strategies, one file each; `parity.bisect.strategy` registers and finds them."""
