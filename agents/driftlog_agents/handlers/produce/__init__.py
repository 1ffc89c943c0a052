"""Produce: admission, conversion of batches, answers.

Shell.
"""
