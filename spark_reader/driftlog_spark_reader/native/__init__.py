"""Sealed segments as native Parquet scans: `read_topic`.

Shell.
"""
