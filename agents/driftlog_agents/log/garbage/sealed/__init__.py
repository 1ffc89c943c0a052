"""Sealed garbage: objects of live topics that no manifest version names are deleted.

Shell.
"""
