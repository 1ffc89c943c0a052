"""Topics: created, changed and deleted in the metadata store and in the bucket.

Shell.
"""
