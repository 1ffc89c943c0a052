"""Records out: `Consumer` and `AsyncConsumer`.

Shell.
"""
