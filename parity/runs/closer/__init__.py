"""Closer looks at a pair: suspects and modules alone, the candidate's values followed, nothing observed at all."""
