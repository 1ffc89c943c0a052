"""Mutated frames through everything that reads what unknown_keys send.

`python -m tests.fuzz --frames 10000000 --seed 1` runs all targets; `make fuzz` does.
A target is a function of bytes that returns or raises: `targets` lists them, with the good
inputs that are mutated.  To add one, add it there.
"""
