"""What all clients share: records, errors, settings, the way to the cluster.

Shell.
"""
