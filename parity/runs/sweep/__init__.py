"""`parity sweep`: many candidates against one reference, what each costs."""
