"""Retention: log start passes segments that have expired, by time and by size.

Shell.
"""
