"""Commands for a CI machine: a port held to a golden."""
