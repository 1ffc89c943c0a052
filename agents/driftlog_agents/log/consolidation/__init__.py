"""Consolidation: many flush objects become few, and their records are deleted.

Shell.
"""
