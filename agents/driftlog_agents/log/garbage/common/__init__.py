"""What the collections of garbage share: its names, and their reads of both stores.

Shell.
"""
