"""Limits of connections: how many, how fast, and what they hold.

Shell.
"""
