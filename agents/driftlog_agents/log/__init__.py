"""The log: partitions, the flush pipeline, sessions, recovery, sealing.

Pure.
"""
