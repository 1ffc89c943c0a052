"""A stream of Spark beside producers, kills of its agent, and kills of the query itself.

Shell.
"""
