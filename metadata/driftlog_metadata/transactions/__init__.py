"""Guarded transactions: sessions, commits, leadership, flush records.

Shell.
"""
