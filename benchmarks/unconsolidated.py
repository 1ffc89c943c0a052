"""Runs a `driftlog` command whose agent never consolidates, so that flush records pile up.

    python -m benchmarks.unconsolidated driftlog agent run …

For figures of takeovers from many flush records, those of a killed agent that never consolidated.
Root.
"""

import sys

from driftlog.cli import main
from driftlog_agents.log.consolidation.policy import ConsolidationSettings

if __name__ == "__main__":
    defaults = ConsolidationSettings.__init__.__kwdefaults__
    assert defaults is not None
    changed = {
        "age_ms": 1e15,
        **dict.fromkeys(("records", "large_records", "waiting_records"), 10**9),
    }
    assert changed.keys() <= defaults.keys()
    defaults.update(changed)
    sys.exit(main(sys.argv[2:]))
