"""Garbage: objects that no manifest and no flush record names are deleted.

Shell.
"""
