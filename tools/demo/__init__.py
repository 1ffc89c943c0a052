"""`make demo`: the main job on real input, from a Kafka client to Spark, shown to a person.

Root.
"""
