"""The process: options, wiring, identity, HTTP port, metrics.

Shell.
"""
