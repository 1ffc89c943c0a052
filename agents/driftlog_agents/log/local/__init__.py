"""Bytes on the agent's disk: buffer files, spool files, the cache of reads.

Shell.
"""
