"""Groups: their members, assignments and committed offsets.

Pure.
"""
