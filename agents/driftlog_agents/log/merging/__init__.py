"""Merging of small segments in the partitions that one session leads.

Shell.
"""
