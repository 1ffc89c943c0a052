"""The Kafka-speaking process.

Pure.
"""
