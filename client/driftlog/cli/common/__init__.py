"""What every command shares: connection, grammar, output, exit codes.

Shell.
"""
