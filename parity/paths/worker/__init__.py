"""Sides in processes of their own: the child's part, the pipe between, and the starting of it."""
