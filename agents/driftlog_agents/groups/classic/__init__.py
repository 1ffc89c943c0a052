"""Groups of the classic protocol (JoinGroup, SyncGroup) as a pure machine.

Pure.
"""
