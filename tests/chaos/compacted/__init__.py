"""Compacted topics in chaos: writers, readers of everything, and an oracle of latest values."""
