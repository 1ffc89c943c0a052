"""The object store port, and what is behind it: S3, a directory, memory.

Shell.
"""
