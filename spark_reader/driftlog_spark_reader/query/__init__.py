"""What a query reads: topics, partitions, offset ranges, and the segments that hold them.

Shell.
"""
