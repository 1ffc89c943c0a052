"""`make local`: the whole picture on this machine, until Ctrl-C.

    python -m tools.local [--dir DIR] [--demo-only] [--input FILE.ndjson]

Exit status: 0 stopped, or the demo is right; 1 it is not, or something failed.

Root.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from driftlog.dev_cluster.local_etcd import NoEtcdError
from tools.local import servers
from tools.local.supervisor import LocalError, Supervisor

_REPOSITORY: Final = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run until a signal; returns the exit status."""
    options = _options()
    if not servers.LOCALSTACK_PYTHON.exists():
        return _failed("LocalStack is not installed: make localstack")
    demo = [] if options.input is None else ["--input", str(options.input.absolute())]
    supervisor = Supervisor(options.dir.absolute(), demo, only=options.demo_only, say=_say)
    try:
        return supervisor.run()
    except (LocalError, NoEtcdError, OSError) as error:
        return _failed(str(error))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make local",
        description="LocalStack, etcd and three agents without Docker, and the demo through them.",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=_REPOSITORY / "local-data",
        metavar="DIR",
        help="directory of all files; each start removes what the last one left (default: "
        "local-data)",
    )
    parser.add_argument("--demo-only", action="store_true", help="end after the demo")
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help="newline-delimited JSON for the demo; default: the flights out of New York City",
    )
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, flush=True)


def _failed(why: str) -> int:
    print(f"make local: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
