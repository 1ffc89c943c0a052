"""Leadership: which partitions this session leads, from the claim to the release.

Shell.
"""
