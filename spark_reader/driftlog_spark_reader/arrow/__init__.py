"""Sealed segments for pyarrow, DuckDB and Polars: `scan`, `read_arrow`.

No module here imports PySpark.

Shell.
"""
