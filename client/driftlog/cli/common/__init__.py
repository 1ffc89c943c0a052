"""What every command shares: grammar, output, exit codes, names and times.

Shell.
"""
