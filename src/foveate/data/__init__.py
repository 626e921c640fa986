"""Data sets, splits, transforms."""
