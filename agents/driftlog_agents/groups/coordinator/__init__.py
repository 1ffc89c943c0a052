"""The group coordinator: loads, serves and stores the groups of this agent.

Shell.
"""
