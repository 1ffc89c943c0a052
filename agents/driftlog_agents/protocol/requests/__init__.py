"""Requests: the APIs that are served, and the fast path of Produce.

Pure.
"""
