"""The metadata store: its keys, its values, and the transactions that guard them.

Pure.
"""
