"""`driftlog cluster` and `driftlog partitions`: brokers, APIs, offline partitions.

Shell.
"""
