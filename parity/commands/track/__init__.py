"""Results handed to the tools that a team has already."""
