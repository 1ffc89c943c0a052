"""Sums over blocks of offsets, the same of any DataFrame with the columns of Spark's Kafka source.

    records ──▶ by partition and block of 32 Ki offsets: count, bitmap of offsets, digest
            ──▶ by partition: sums              ──▶ blocks with gaps; blocks where two topics differ

The digest of records is 128 bits: the exclusive or of their hashes, and the sum of the upper halves
of these.  It does not depend on files or order.  A hash is of offset, timestamp in milliseconds,
key, value and headers, and tells what is null from what is empty.

Shell.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from driftlog_spark_reader.jobs.offset_gaps import BITS

_SUM: Final = "decimal(38,0)"


def blocks_of(rows: DataFrame, topic: str) -> DataFrame:
    """A row for each partition and block that has records.

    ``unknown_keys`` counts records that name another topic.
    """
    hashed = rows.select(
        F.col("partition"),
        F.col("offset"),
        F.floor(F.col("offset") / F.lit(BITS)).cast("bigint").alias("block"),
        _hash().alias("hash"),
        (F.col("topic") != F.lit(topic)).alias("strange"),
    )
    position = F.pmod("offset", F.lit(BITS)).cast("bigint")
    found = hashed.groupBy("partition", "block").agg(
        F.count(F.lit(1)).alias("records"),
        F.bitmap_construct_agg(position).alias("bitmap"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.count_if("strange").alias("unknown_keys"),
        F.bit_xor("hash").alias("either"),
        F.sum(F.shiftrightunsigned("hash", 32)).alias("upper"),
    )
    return found.withColumn("offsets", F.bitmap_count("bitmap"))


def partitions_of(blocks: DataFrame) -> DataFrame:
    """The sums of each partition; ``offsets`` counts distinct ones."""
    return blocks.groupBy("partition").agg(
        F.sum("records").alias("records"),
        F.sum("offsets").alias("offsets"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
        F.sum("unknown_keys").alias("unknown_keys"),
        F.bit_xor("either").alias("either"),
        F.sum(F.col("upper").cast(_SUM)).alias("upper"),
    )


def blocks_with_gaps(blocks: DataFrame, most: int) -> DataFrame:
    """The first blocks that are not full, or whose neighbour before is missing, in order."""
    by_partition = Window.partitionBy("partition").orderBy("block")
    found = blocks.select("partition", "block", "bitmap", "offsets")
    found = found.withColumn("previous", F.lag("block").over(by_partition))
    found = found.where((F.col("offsets") < BITS) | (F.col("previous") < F.col("block") - F.lit(1)))
    return found.orderBy("partition", "block").limit(most)


def blocks_with_duplicates(blocks: DataFrame, most: int) -> DataFrame:
    """The first blocks that have an offset twice, in order."""
    found = blocks.where(F.col("records") > F.col("offsets"))
    return found.select("partition", "block").orderBy("partition", "block").limit(most)


def differing_blocks(ours: DataFrame, theirs: DataFrame, most: int) -> DataFrame:
    """The first blocks whose records differ, in order."""
    what = ("records", "either", "upper")
    left = ours.select("partition", "block", F.struct(*what).alias("ours"))
    right = theirs.select("partition", "block", F.struct(*what).alias("theirs"))
    found = left.join(right, ["partition", "block"], "full_outer")
    found = found.where(~F.col("ours").eqNullSafe(F.col("theirs")))
    return found.select("partition", "block").orderBy("partition", "block").limit(most)


def _hash() -> Column:
    """Of all that a record has; ``xxhash64`` passes over nulls, so they are named beside."""
    headers = F.transform(
        F.col("headers"), lambda h: F.struct(h["key"], F.isnull(h["value"]), h["value"])
    )
    return F.xxhash64(
        F.col("offset"),
        F.unix_millis("timestamp"),
        F.isnull("key"),
        F.col("key"),
        F.isnull("value"),
        F.col("value"),
        F.coalesce(F.size("headers"), F.lit(-1)),
        headers,
    )
