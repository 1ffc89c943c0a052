"""`driftlog dev` and `driftlog agent run`: agents in the foreground.

Shell.
"""
