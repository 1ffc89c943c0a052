"""Jobs on Spark: the log is counted, checked and exported, and a query moves to it.

Root.
"""
