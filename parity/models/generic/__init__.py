"""Any diffusers transformer by class and config alone, for a class that no other family runs."""
