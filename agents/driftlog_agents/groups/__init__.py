"""Groups: who is in them, what they read, and how far.

Pure.
"""
