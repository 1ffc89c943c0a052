"""`make local`: LocalStack, etcd and three agents on this machine, without Docker.

Root.
"""
