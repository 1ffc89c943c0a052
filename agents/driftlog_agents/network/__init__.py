"""Sockets to requests, answers to sockets.

Pure.
"""
