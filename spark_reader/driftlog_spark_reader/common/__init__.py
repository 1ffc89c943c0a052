"""What every folder uses: the errors, and the columns of a record.

Pure.
"""
