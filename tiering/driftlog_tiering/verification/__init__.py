"""Verification: one partition's sealed log, compared with what its newest manifest says of it.

Shell.
"""
