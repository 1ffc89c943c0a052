"""One led partition: its offsets, its producers, its unsealed tail.

Shell.
"""
