"""The rows of a DataFrame as records of topics, with the columns and options of Spark's Kafka sink.

Shell.
"""
