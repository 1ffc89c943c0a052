"""Verification: the sealed log of each led partition is compared with its manifest, once a week.

Shell.
"""
