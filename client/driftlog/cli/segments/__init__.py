"""`driftlog segments`: sealing, and the sealed files of a topic.

Shell.
"""
