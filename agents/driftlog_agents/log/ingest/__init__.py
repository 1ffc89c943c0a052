"""Ingest: from an admitted batch to a committed flush object.

Shell.
"""
