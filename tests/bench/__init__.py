"""Benchmarks: they print what they measured, and no test depends on a time."""
