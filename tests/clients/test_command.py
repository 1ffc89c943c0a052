"""The `driftlog` command does what a person types, and explains each mistake."""

import contextlib
import functools
import re
import shutil
import socket
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from driftlog.cli import parser
from driftlog.cli.common.parsers import commands_of, walk
from tests.clients.command import read, refused, run, said
from tests.support.driftlog_process import DriftlogProcess, driftlog_command
from tests.support.process_usage import free_port, stop_process, wait_until

pytestmark = pytest.mark.xdist_group("command")


def driftlog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    done = run(*arguments)
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def test_it_says_which_version_it_is() -> None:
    """
    The distribution's.
    """
    done = driftlog("--version")

    assert (done.returncode, done.stdout) == (0, f"driftlog {metadata.version('driftlog')}\n")


@pytest.mark.parametrize(
    ("line", "prog"),
    [
        ("--bogus", "driftlog"),
        ("dev --bogus", "driftlog dev"),
        ("dev --dir /tmp/unused --bogus", "driftlog dev"),
        ("agent run --bogus", "driftlog agent run"),
        ("segments --bogus", "driftlog segments"),
        ("segments seal --bogus", "driftlog segments seal"),
        ("topics --bogus", "driftlog topics"),
        ("topics create --partitions 3 --bogus", "driftlog topics create"),
        ("consume --bogus", "driftlog consume"),
        ("groups reset-offsets g --bogus", "driftlog groups reset-offsets"),
    ],
)
def test_an_option_that_there_is_not_is_named(line: str, prog: str) -> None:
    """
    And not something else that is missing; with the help that lists those that there are.
    """
    done = driftlog(*line.split())

    assert done.returncode == 2
    assert done.stderr == f"{prog}: unknown: --bogus; `{prog} --help` lists the options\n"


def test_an_option_of_another_command_is_told_with_that_command() -> None:
    """
    Where no more than two have it.
    """
    dev = driftlog("dev", "--dir", "/tmp/unused", "--dev")
    run = driftlog("agent", "run", "--agents", "3", "--dir", "/tmp/unused")

    assert 2 == dev.returncode == run.returncode
    twins = "`driftlog agent run` and `driftlog agent config`"
    assert dev.stderr.endswith(f"; {twins} have --dev\n")
    assert "; `driftlog dev` has --agents" in run.stderr


@pytest.mark.parametrize(
    "line", ["", "agent", "segments", "topics", "groups", "configs", "cluster", "partitions"]
)
def test_a_command_without_what_it_needs_shows_what_there_is(line: str) -> None:
    """
    With an error's status, for scripts.
    """
    done = driftlog(*line.split())

    assert done.returncode == 2
    assert "COMMAND" in done.stderr


def test_what_must_be_given_is_named() -> None:
    """
    An agent has no directory by default.
    """
    done = driftlog("dev")

    assert done.returncode == 2
    assert "--dir" in done.stderr.splitlines()[-1]


# ── The HTTP port ──


def ready_line(folder: Path) -> tuple[str, str]:
    """Start `driftlog dev` as a new user does, stop it; its ready line and its log."""
    command, out, err = driftlog_command(), folder / "out", folder / "err"
    assert command is not None
    listener = f"127.0.0.1:{free_port()}"
    with out.open("wb") as said, err.open("wb") as logged:
        agent = subprocess.Popen(
            [command, "dev", "--dir", str(folder / "data"), "--listener", listener],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=logged,
        )
        try:
            wait_until(lambda: b"\n" in out.read_bytes(), agent, 60, err)
        finally:
            stop_process(agent, 60)
    (line,) = out.read_text().splitlines()
    assert line.startswith(f"driftlog is ready: bootstrap {listener}, http ")
    return line, err.read_text()


def test_the_http_port_of_dev_is_where_one_looks_for_it(tmp_path: Path) -> None:
    """
    9644, as that of `agent run`; unless somebody else has it.
    """
    line, log = ready_line(tmp_path)

    assert "http 127.0.0.1:9644," in line or log.count("http_port_taken") == 1


def test_a_second_dev_takes_another_http_port_and_says_so(tmp_path: Path) -> None:
    """
    Nobody asked for 9644, so that it is taken stops nobody; the log says it once.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody has it already: all the better
            stack.enter_context(socket.create_server(("127.0.0.1", 9644)))
        line, log = ready_line(tmp_path)

    found = re.search(r"http 127\.0\.0\.1:(\d+),", line)
    assert found is not None
    assert found[1] != "9644"
    assert log.count("http_port_taken") == 1
    assert f"127.0.0.1:{found[1]}" in log


# ── `segments seal` ──


@pytest.mark.parametrize(
    ("bootstrap", "said"),
    [
        ("127.0.0.1:1", "nothing listens at 127.0.0.1:1: Connection refused"),
        ("nosuchhost.invalid:9092", "nothing listens at nosuchhost.invalid:9092"),
        ("no..host:9092", "nothing listens at no..host:9092"),
        ("nosuchhost.invalid", "nothing listens at nosuchhost.invalid:9092"),
        ("host:port", "'host:port' is not HOST:PORT"),
        ("127.0.0.1:99999", "nothing listens at 127.0.0.1:99999"),
    ],
)
def test_sealing_where_nobody_is_says_so(bootstrap: str, said: str) -> None:
    """
    At once, in words, and where to look for the right address.
    """
    done = driftlog("segments", "seal", "t", "-b", bootstrap)

    assert done.returncode == 1
    assert said in done.stderr
    assert "--bootstrap-server" in done.stderr
    assert "KafkaError" not in done.stderr


def test_sealing_at_the_wrong_port_of_an_agent_says_so(agent: DriftlogProcess) -> None:
    """
    The HTTP port is no bootstrap address.
    """
    done = driftlog("segments", "seal", "t", "-b", agent.http.removeprefix("http://"))

    assert done.returncode == 1
    assert "speaks HTTP and not Kafka" in done.stderr
    assert "--bootstrap-server" in done.stderr
    assert "KafkaError" not in done.stderr


@pytest.mark.parametrize("topic", ["no-such-topic", "no such topic/é"])
def test_sealing_a_topic_that_is_not_there_says_so(agent: DriftlogProcess, topic: str) -> None:
    """
    Whatever it is called.
    """
    done = driftlog("segments", "seal", topic, "-b", agent.bootstrap)

    assert done.returncode == 1
    assert f"topic {topic!r} does not exist" in done.stderr


# ── Any command ──


@pytest.mark.parametrize(
    "line",
    [
        "topics list",
        "topics create t",
        "produce t",
        "consume t",
        "consume t --group g",
        "groups list",
        "groups reset-offsets g --topic t --to-latest",
        "configs describe --topic t",
        "cluster info",
    ],
)
def test_whoever_reaches_nobody_is_told_what_to_do(line: str) -> None:
    """
    At once: which address was tried, and how an agent is started.
    """
    done = run(*line.split(), bootstrap="127.0.0.1:1", timeout_s=30)
    said = done.stderr.decode()

    assert done.returncode == 1
    assert "nothing listens at 127.0.0.1:1: Connection refused" in said
    assert "`driftlog dev --dir DIR` starts an agent" in said


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("topics create", "no topic is named"),
        ("topics alter t", "nothing to alter"),
        ("topics create t --config retention.ms", "is not NAME=VALUE"),
        ("topics create t -p 0", "is no number above 0"),
        ("produce", "no topic is named"),
        ("produce t --json -K:", "leave -K and -Z out"),
        ("produce t -z brotli", "invalid choice"),
        ("consume", "no topic is named"),
        ("consume t -o nowhere", "is no offset"),
        ("consume t -o 3 --from-beginning", "-o is given twice"),
        ("consume t -f %q", "unknown token %q"),
        ("consume t --group g -o 5", "groups reset-offsets"),
        ("consume t -o stored", "-o stored needs a group"),
        ("consume t --property print.kye=true", "did you mean 'print.key'"),
        ("produce t --property parse.headers=true", "unknown property 'parse.headers'"),
        ("groups reset-offsets g --topic t", "required"),
        ("topics delete-records t", "required"),
        ("topics delete-records --all", "no topic is named"),
        ("topics delete-records t:x --all", "is no partition"),
        ("groups reset-offsets g --to-latest", "no topic is named"),
        ("groups reset-offsets --all-topics --to-latest", "no group is named"),
        ("groups reset-offsets g --topic t --to-latest --to-earliest", "not allowed with"),
        ("groups reset-offsets g --topic t --to-datetime soon", "is no time"),
        ("groups list --state Empt", "did you mean 'Empty'"),
        ("configs describe", "no entity is named"),
        ("configs alter --topic t", "nothing to alter"),
        ("cluster info -X nonsense=1", "No such configuration property"),
        ("cluster info -X nonsense", "is not NAME=VALUE"),
        ("cluster info --timeout 0", "is not a number of seconds"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(
    agent: DriftlogProcess, line: str, why: str
) -> None:
    """
    With the status of a wrong command line.
    """
    assert why in refused(agent.bootstrap, *line.split(), status=2)


def test_a_file_of_properties_is_read(agent: DriftlogProcess, tmp_path: Path) -> None:
    """
    As Kafka's scripts take one; -X says more than the file, and the file more than the variable.
    """
    file = tmp_path / "client.properties"
    file.write_text(f"# where\nbootstrap.servers = {agent.bootstrap}\n\nclient.id=me\n")
    done = run("cluster", "info", "-F", str(file), bootstrap="127.0.0.1:1")
    over = run("cluster", "info", "-F", str(file), "-X", "bootstrap.servers=127.0.0.1:2")
    file.write_text("nonsense\n")
    wrong = run("cluster", "info", "-F", str(file))

    assert (0, 1, 2) == (done.returncode, over.returncode, wrong.returncode)
    assert b"nothing listens at 127.0.0.1:2" in over.stderr
    assert b"line 1: 'nonsense' is not NAME=VALUE" in wrong.stderr


def test_where_the_cluster_is_may_stand_anywhere(agent: DriftlogProcess) -> None:
    """
    In front of the command, behind it, or in the environment; what is typed wins.
    """
    at = agent.bootstrap
    first = run("-b", at, "cluster", "info", bootstrap="127.0.0.1:1")
    last = run("cluster", "info", "-b", at, bootstrap="127.0.0.1:1")
    variable = run("cluster", "info", bootstrap=at)

    assert (0, 0, 0) == (first.returncode, last.returncode, variable.returncode)


# ── Completion ──


@functools.cache
def bash_script() -> str:
    """What a user's shell evaluates."""
    return driftlog("completion", "bash").stdout


def completed(*words: str) -> list[str]:
    """What bash offers for the last of *words*."""
    script = (
        'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _driftlog 2>/dev/null; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", bash_script(), "driftlog", *words],
        capture_output=True,
        check=True,
        timeout=30,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["to"], {"topics"}),
        (["-b", "h", "topics", "cr"], {"create"}),
        (["topics", "create", "t", "--part"], {"--partitions"}),
        (["produce", "t", "-z", ""], {"none", "gzip", "snappy", "lz4", "zstd"}),
        (["agent", "run", "--log-level", "w"], {"warning"}),
        (["groups", "reset-offsets", "g", "--to-d"], {"--to-datetime"}),
        (["groups", "list", "--type", ""], {"classic", "consumer"}),
        (["completion", "f"], {"fish"}),
        (["consume", "t", "--group", ""], set()),
    ],
)
def test_bash_completes_what_the_parser_knows(words: list[str], offered: set[str]) -> None:
    """
    Commands, options, their values; nothing where only the user knows.
    """
    assert offered == set(completed(*words))


def test_bash_completes_every_command_with_all_its_options() -> None:
    """
    Whatever is added to the parser is completed, too.
    """
    for inner in walk(parser()):
        words = inner.prog.split()[1:]
        expected = set(commands_of(inner))
        for action in inner._actions:  # noqa: SLF001  # argparse has no other list
            expected |= set(action.option_strings)
        assert expected <= set(completed(*words, "")), inner.prog


def test_bash_completes_files_where_they_are_meant(tmp_path: Path) -> None:
    """
    Behind --dir and its like.
    """
    (tmp_path / "some-data").mkdir()

    assert [str(tmp_path / "some-data")] == completed("dev", "--dir", str(tmp_path / "some"))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_option(shell: str) -> None:
    """
    Where the shell is installed, it reads its script as well.
    """
    done = driftlog("completion", shell)
    for inner in walk(parser()):
        for action in inner._actions:  # noqa: SLF001  # argparse has no other list
            for name in action.option_strings:
                there = f"-l {name[2:]} " if name.startswith("--") else f"-s {name[1:]} "
                assert (there if shell == "fish" else f"'{name}") in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, check=True, timeout=30, text=True)


def test_configs_that_a_broker_was_started_with_are_shown_as_set() -> None:
    """
    Without --all, those of `--config`, also where the value is the default; a default is not shown.
    """
    line = ("--config", "num.partitions=1", "--config", "group.max.size=7")
    with DriftlogProcess(command=("agent", "run"), arguments=line) as agent:
        (entity,) = read(agent.bootstrap, "configs", "describe", "--broker", "1")
        table = said(agent.bootstrap, "configs", "describe", "--broker", "1")

    found = {config["name"]: (config["value"], config["source"]) for config in entity["configs"]}
    at_start = "start of the broker"
    assert (("1", at_start), ("7", at_start)) == (found["num.partitions"], found["group.max.size"])
    assert "group.consumer.max.size" not in found
    assert f"{len(found)} configs set" in table
