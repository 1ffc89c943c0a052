"""Fetch: sessions, waits for records, reads of the requested partitions.

Shell.
"""
