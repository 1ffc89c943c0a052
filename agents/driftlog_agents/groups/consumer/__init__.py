"""Groups of the consumer protocol (KIP-848) as a pure machine.

Pure.
"""
