"""The `driftlog` command.

    driftlog dev --dir DIR             an agent on this machine, for development
    driftlog dev --agents N --dir DIR  a cluster on this machine: etcd and N agents
    driftlog agent run --dir DIR …     an agent for production; `agent config` shows its settings
    driftlog topics|produce|consume|groups|configs|cluster …
                                       any Kafka cluster: Kafka's and kcat's names and options
    driftlog segments seal|list|describe
                                       Parquet: seal now, list the files
    driftlog verify                    the sealed objects: is any missing or damaged?
    driftlog partitions offline|accept-loss
                                       partitions that need an operator; accept lost records
    driftlog cost workload|cluster     dollars a month: of a workload beside Kafka, of this cluster
    driftlog gc --dry-run              the objects that the agents would delete
    driftlog buffer replay DIR         produce the records that an agent has set aside on its disk
    driftlog spark JOB …               jobs on Spark: statistics, checks, exports, checkpoints
    driftlog completion bash|zsh|fish  a script that completes these commands in the shell

Each module of commands has `add_commands`.
Root.
"""

import os
import sys
from importlib import metadata

from confluent_kafka import KafkaException

from driftlog.cli.agents import agents
from driftlog.cli.cluster import cluster, cost, garbage, partition_loss, restore
from driftlog.cli.common import completion
from driftlog.cli.common.errors import FAILED, INTERRUPTED, OK, CommandError
from driftlog.cli.common.output import complain
from driftlog.cli.common.parsers import Parser, add_commands, in_our_order, new_parser, parse
from driftlog.cli.configs import configs
from driftlog.cli.connection.connection import add_bootstrap_option, reason
from driftlog.cli.connection.readiness_notice import ReadinessNotice
from driftlog.cli.groups import groups
from driftlog.cli.records import buffer, consume, produce
from driftlog.cli.segments import segments, verification
from driftlog.cli.spark import spark
from driftlog.cli.topics import topics

__all__ = ["main", "parser"]

_MODULES = (
    agents,
    topics,
    produce,
    consume,
    groups,
    configs,
    cluster,
    segments,
    verification,
    partition_loss,
    cost,
    garbage,
    restore,
    buffer,
    spark,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    ours = parser()
    line = in_our_order(ours, sys.argv[1:] if arguments is None else arguments)
    options = parse(ours, parser(), line)
    try:
        with ReadinessNotice(options) as options.notice:
            status: int = options.run(options)
        sys.stdout.flush()
    except CommandError as error:
        complain(str(error))
        return error.status
    except KafkaException as error:
        complain(reason(error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _output_closed()
    return status


def parser() -> Parser:
    """The command line's grammar."""
    whole = new_parser("driftlog", "A Kafka log whose disk is a bucket.")
    version = f"driftlog {metadata.version('driftlog')}"
    whole.add_argument("--version", action="version", version=version)
    add_bootstrap_option(whole)
    commands = add_commands(whole)
    for module in _MODULES:
        module.add_commands(commands)
    completion.add_commands(commands, whole)
    return whole


def _output_closed() -> int:
    """The exit status for a closed output (`driftlog consume … | head`): no error, nor at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK
