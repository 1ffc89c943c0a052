"""One module per API: its two messages and an `API` that names their versions.

Pure.
"""
