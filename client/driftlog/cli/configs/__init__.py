"""`driftlog configs`: describe and alter configs of topics, brokers and groups.

Shell.
"""
