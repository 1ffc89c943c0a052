"""Makes Spark find the format ``driftlog``: it imports every module named ``pyspark_…`` and
registers its `DefaultSource`.

Root.
"""

from driftlog_spark_reader.source.data_source import DriftlogSource as DefaultSource

__all__ = ["DefaultSource"]
