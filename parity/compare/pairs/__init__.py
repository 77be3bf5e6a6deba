"""Which record of one side stands against which of the other."""
