"""Tests, by layer: see README.md.

A package, so that `python -m tests.simulation` finds this one and no other.
Shell.
"""
