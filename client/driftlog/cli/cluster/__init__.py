"""`driftlog cluster`, `partitions` and `gc`: brokers, APIs, grace, offline partitions, garbage.

Shell.
"""
