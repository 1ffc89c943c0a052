"""The metadata port, and what is behind it: SQLite, memory, etcd.

Shell.
"""
