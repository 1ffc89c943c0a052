"""The log of the process: lines on standard error, which may be full, closed or unread.

Imports nothing of the agent's other folders.
Pure.
"""
