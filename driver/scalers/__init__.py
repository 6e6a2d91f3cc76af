"""Ways to have more or fewer workers."""
