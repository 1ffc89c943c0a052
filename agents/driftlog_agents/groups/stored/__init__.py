"""Stored groups: what their keys mean at a takeover, and the removal of unreadable ones.

Shell.
"""
