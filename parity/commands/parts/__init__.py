"""What several commands share: option groups, flattening, kept folders."""
