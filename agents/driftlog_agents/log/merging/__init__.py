"""Merging of small segments in partitions.

Shell.
"""
