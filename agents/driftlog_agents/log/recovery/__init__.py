"""Recovery: batches that a dead session buffered on this disk and did not commit.

Shell.
"""
