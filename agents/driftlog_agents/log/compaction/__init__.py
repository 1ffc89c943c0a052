"""Compaction of the partitions that one session leads: which is next, and its edits.

Shell.
"""
