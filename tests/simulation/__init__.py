"""The log under every schedule that a seed can make: see `world`."""
