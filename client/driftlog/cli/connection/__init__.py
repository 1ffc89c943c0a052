"""How commands reach a cluster: its address, clients, the HTTP ports of its agents.

Shell.
"""
