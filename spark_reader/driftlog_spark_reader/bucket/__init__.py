"""The objects of a bucket as Spark's driver and executors reach them, and the topics in them.

Shell.
"""
