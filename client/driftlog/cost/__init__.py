"""Cost: what a workload costs a month, here and with Kafka, and what a cluster spends

Pure.
"""
