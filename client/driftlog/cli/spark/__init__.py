"""`driftlog spark`: jobs on Spark, in a process of their own.

Shell.
"""
