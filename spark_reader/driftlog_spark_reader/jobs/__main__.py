"""`python -m driftlog_spark_reader.jobs JOB …`: what `driftlog spark` starts.

Root.
"""

import sys

from driftlog_spark_reader.jobs.command_line import main

if __name__ == "__main__":
    sys.exit(main())
