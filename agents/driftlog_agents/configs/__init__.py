"""Configs of brokers, topics and groups: names, values, defaults, limits.

Pure.
"""
