"""The options of Spark's Kafka source: their forms, their defaults, and what they select.

Pure.
"""
