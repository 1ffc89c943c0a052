"""`driftlog groups`: members, lag, offsets.

Shell.
"""
