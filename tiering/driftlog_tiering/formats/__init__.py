"""What lies in the bucket: names of objects, flush objects, manifests.

Shell.
"""
