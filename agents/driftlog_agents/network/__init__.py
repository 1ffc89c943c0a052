"""Reads requests from sockets, and writes answers to them.

Pure.
"""
