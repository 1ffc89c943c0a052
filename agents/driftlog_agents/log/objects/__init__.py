"""Reads of objects and flush records that any session wrote, with their caches.

Shell.
"""
