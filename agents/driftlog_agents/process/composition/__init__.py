"""One agent: built from its ports, in its cluster, one session after the other.

Root.
"""
