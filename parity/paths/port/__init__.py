"""A user's own code as a side: its file loaded, called as it is, and what it may change watched."""
