"""driftlog: a Kafka log whose disk is a bucket.

Shell.
"""
