"""Records in: `Producer` and `AsyncProducer`.

Shell.
"""
