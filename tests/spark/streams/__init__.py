"""A stream's protocol beside real agents, in virtual time, from one seed.

Shell.
"""
