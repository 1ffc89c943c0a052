"""Merging: neighbouring small segments of one partition become one, with all their records.

Shell.
"""
