"""From batches to objects, and back: flush objects, sealed segments, manifests.

Pure.
"""
