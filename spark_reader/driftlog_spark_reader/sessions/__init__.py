"""Spark sessions that reach a bucket: `session`.

Shell.
"""
