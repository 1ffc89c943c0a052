"""The metadata port, and what is behind it: SQLite and etcd.

Shell.
"""
