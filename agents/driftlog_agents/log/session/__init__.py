"""One session: its lease, its commits, its producer ids, its counters.

Shell.
"""
