"""The tail: committed records that are not sealed yet, from agents, or from etcd and flush objects.

Shell.
"""
