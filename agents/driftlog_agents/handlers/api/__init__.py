"""One module for each Kafka API.

Shell.
"""
