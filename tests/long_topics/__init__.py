"""Applications that keep their state in compacted topics, run for long, killed, and started again
from those topics: Kafka Streams, Kafka Connect and a schema registry.
"""
