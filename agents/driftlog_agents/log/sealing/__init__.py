"""Sealing: committed batches become Parquet segments.

Shell.
"""
