"""Whether the agent may serve: its directory, its stores, its event loop.

Shell.
"""
