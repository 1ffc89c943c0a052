"""The format ``driftlog``: Spark's Python data source, for batches and streams.

Shell.
"""
