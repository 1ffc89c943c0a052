"""The metrics of an agent, as Prometheus reads them.

The components keep plain numbers, which are read at each scrape: so counting costs the hot path an
addition.

Shell.
"""
