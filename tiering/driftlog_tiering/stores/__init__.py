"""The object store port, and what is behind it: S3 and a directory.

Shell.
"""
