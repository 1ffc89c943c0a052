"""Compaction and merging of partitions whose leaders lack the role `seal`.

Shell.
"""
