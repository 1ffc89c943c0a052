"""What is true, and who may say so: the metadata store, its keys and its values.

Pure.
"""
