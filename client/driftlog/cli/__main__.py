"""`python -m driftlog.cli`: the `driftlog` command without its script.

Root.
"""

import sys

from driftlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
