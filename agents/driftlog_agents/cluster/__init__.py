"""The agents of a cluster, as each of them sees the others.

Pure.
"""
