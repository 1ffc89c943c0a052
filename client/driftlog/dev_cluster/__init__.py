"""`driftlog dev --agents`: one etcd and some agents on this machine.

Shell.
"""
