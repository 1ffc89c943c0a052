"""Compaction of partitions: which is next, and its edits.

Shell.
"""
