"""Sealed segments: Parquet files of a partition's records, written and read.

Shell.
"""
