"""Bytes on the agent's disk: buffer files and spool files.

Shell.
"""
