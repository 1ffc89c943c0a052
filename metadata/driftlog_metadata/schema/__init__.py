"""Keys and values of the metadata store, and how they are stored.

Pure.
"""
