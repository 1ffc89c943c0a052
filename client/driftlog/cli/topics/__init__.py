"""`driftlog topics`: list, describe, create, alter, delete, delete records.

Shell.
"""
