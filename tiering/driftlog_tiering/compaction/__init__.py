"""Compaction: one partition's sealed segments, rewritten so that each key keeps its newest value.

Shell.
"""
