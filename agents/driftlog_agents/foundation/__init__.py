"""What several folders need and Kafka has no word for: retries, rates, tasks, loop slices.

Shell.
"""
