"""Topics, configs and groups: `Admin`.

Shell.
"""
