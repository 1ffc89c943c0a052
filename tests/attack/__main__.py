"""`python -m tests.attack`: hostile clients against real agents, and what became of these.

Root.
"""

import argparse
import itertools
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Final

from tests.attack.families import ALL
from tests.attack.harness import STALL_MS, Outcome, run
from tests.attack.report import merged, table

_FASTEST: Final = "pipelined-values"
"""The attack that sends most requests a second."""


def main() -> int:
    """Run, and print the table.  Returns 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument(
        "--seconds", type=float, default=300, help="of attacks, all together; starts come on top"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="this attack, or those of this family"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--stall-ms",
        type=float,
        default=STALL_MS,
        help="of the event loop that is too long",
    )
    parser.add_argument(
        "--beside-others",
        action="store_true",
        help="other work has the cores: stalls, and memory below 3 GiB, are told and fail nothing",
    )
    parser.add_argument(
        "--requests",
        type=int,
        help=f"repeat the attacks, and {_FASTEST} for as long as all of them, with other seeds, "
        "until so many were sent",
    )
    parser.add_argument("--list", action="store_true", help="say what there is")
    options = parser.parse_args()
    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.list:
        for family, attacks in ALL.items():
            for attack in attacks:
                what = " ".join((attack.__doc__ or "").split())
                print(f"{attack.name:<24} {family:<8} {attack.item:>3}  {what}")
        return 0
    chosen = [
        attack
        for family, attacks in ALL.items()
        for attack in attacks
        if not options.only or {family, attack.name} & set(options.only)
    ]
    if not chosen:
        parser.error(f"no attack or family is called {' or '.join(options.only)}: --list")
    outcomes: list[Outcome] = []
    again: dict[int, set[str]] = {}
    code = 0
    try:
        for name, seconds, seed in _plan(options, [attack.name for attack in chosen]):
            alone = not options.beside_others
            outcome = _one(name, seconds, seed, options.stall_ms, alone=alone)
            outcomes.append(outcome)
            if not outcome.ok:
                again.setdefault(seed, set()).add(name)
            sent = sum(each.sent for each in outcomes)
            print(
                f"{outcome.name}: {'; '.join(outcome.failures) or 'ok'}  (seed {seed}, "
                f"{outcome.sent:,} requests in {outcome.seconds:.0f} s, {sent:,} so far)",
                file=sys.stderr,
                flush=True,
            )
            if options.requests is not None and sent >= options.requests:
                break
    except KeyboardInterrupt:
        code = 130  # what was seen until now is worth its table
    print(table(merged(outcomes)))
    for seed, names in sorted(again.items()):
        only = " ".join(f"--only {name}" for name in sorted(names))
        print(f"again: python -m tests.attack --seed {seed} {only}")
    return 1 if again else code


def _plan(options: argparse.Namespace, names: list[str]) -> Iterator[tuple[str, float, int]]:
    """Attack, seconds and seed: each once, or again and again with other seeds."""
    for seed in itertools.count(options.seed):
        for name in names:
            yield name, options.seconds / len(names), seed
        if options.requests is None:
            return
        if _FASTEST in names and len(names) > 1:
            yield _FASTEST, options.seconds, seed


def _one(name: str, seconds: float, seed: int, most_stall_ms: float, *, alone: bool) -> Outcome:
    """An attack that cannot even be made has failed, and the next one is made."""
    attack = next(each for attacks in ALL.values() for each in attacks if each.name == name)
    try:
        return run(
            attack(),
            seconds=seconds,
            seed=seed,
            most_stall_ms=most_stall_ms,
            alone=alone,
        )
    except Exception as error:  # noqa: BLE001  # whatever it was: the table says so
        traceback.print_exc()
        return Outcome(name, failures=[f"{type(error).__name__}: {error}"[:300]])


if __name__ == "__main__":
    sys.exit(main())
