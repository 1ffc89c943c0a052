"""Restore: a cluster comes back from its bucket alone, into an empty metadata store.

Pure.
"""
