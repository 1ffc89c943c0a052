"""Sealed segments as Spark DataFrames.

Shell.
"""
