"""Segments of a range of a partition: read, written here or by another agent, and put.

Shell.
"""
