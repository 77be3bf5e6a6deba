"""`parity record`: one side observed into a golden."""
