"""Hostile clients against a real agent, one attack after the other, a healthy client beside each.

    python -m tests.attack [--seconds N] [--only NAME] [--seed S] [--list]     `make attack` does

    __main__ ──▶ harness ──▶ a fresh agent, its state, a healthy client in a process of its own,
                    │        then one attack, then the agent killed, started again and read
                    └──▶ report: a line for each attack, and why it failed

An attack is a class in the module of its family (`families` has them all).  To add one, derive
from `attacks.Attack` there and name it in the module's ``ATTACKS``.
"""
