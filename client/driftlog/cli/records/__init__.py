"""`driftlog produce` and `driftlog consume`: records in and out.

Shell.
"""
