"""Reads of the log: tail, flush objects and segments, by offset and by time.

Shell.
"""
