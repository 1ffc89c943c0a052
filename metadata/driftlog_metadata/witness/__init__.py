"""Evidence that a metadata store lost what it had answered.

Shell.
"""
