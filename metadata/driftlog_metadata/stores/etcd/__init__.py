"""The metadata store on etcd.

Shell.
"""
