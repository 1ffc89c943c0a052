"""`driftlog partitions accept-loss` asks the right agent, and a person before it acts."""

import json
import os
import pty
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from driftlog.cli import main
from driftlog.cli.cluster import partition_loss

PLAN = {"reasons": ["gone"], "lost": [[1, 2]], "objects": [], "sealed_end": 0, "goes_on_at": 3}


class Agent(ThreadingHTTPServer):
    """Answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.offline: list[dict[str, Any]] = []
        self.leads = False
        self.heir: Agent | None = None
        """Claims what is given back here."""
        self.done = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Agent

    def do_GET(self) -> None:
        if self.path == "/partitions/offline":
            self._answer(200, {"offline": self.server.offline})
        elif self.server.leads:
            self._answer(200, PLAN)
        else:
            self._answer(421, {"error": "ask another one"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        agent = self.server
        if agent.heir is not None:
            agent.leads, agent.heir.leads = False, True
        if agent.leads:
            agent.done += 1
            self._answer(200, {"goes_on_at": 3, "audit": "audit/t"})
        else:
            self._answer(421, {"error": "another agent leads it by now"})

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Agent, Agent]]:
    both = Agent(), Agent()
    monkeypatch.setattr(
        partition_loss, "http_addresses", lambda *_: [agent.address for agent in both]
    )
    monkeypatch.setattr(partition_loss, "_LOOK_S", 0.01)
    yield both
    for agent in both:
        agent.shutdown()
        agent.server_close()


def accept(*, json: bool = True, yes: bool = True, dry_run: bool = False) -> int:
    said = {"--json": json, "--yes": yes, "--dry-run": dry_run}
    options = [option for option, is_said in said.items() if is_said]
    return main(["partitions", "accept-loss", "t:0", *options])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What a person types goes in here."""
    keyboard, screen = pty.openpty()
    with open(screen, closefd=True) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield keyboard
    os.close(keyboard)


def test_the_agent_where_it_is_offline_is_asked_first(agents: tuple[Agent, Agent]) -> None:
    """
    Also where another one, which it is placed on, would answer.
    """
    other, leader = agents
    other.leads = leader.leads = True
    leader.offline = [{"topic": "t", "partition": 0, "reason": "gone"}]

    assert (0, 0, 1) == (accept(), other.done, leader.done)


def test_what_an_agent_says_does_not_steer_the_terminal(
    agents: tuple[Agent, Agent], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A reason is text of others: it stays in its line, and in its cell.
    """
    _, leader = agents
    leader.leads, evil = True, "\x1b[31mgone\nonce"
    leader.offline = [{"topic": "t", "partition": 0, "reason": evil}]
    monkeypatch.setitem(PLAN, "reasons", [evil])

    assert (0, 0) == (main(["partitions", "offline"]), accept(json=False))

    shown = capsys.readouterr().out
    assert 2 == shown.count(r"\x1b[31mgone\nonce")
    assert "\x1b" not in shown


def test_an_agent_that_claims_it_meanwhile_is_asked_instead(agents: tuple[Agent, Agent]) -> None:
    """
    What was shown is accepted there, if it still is what is lost.
    """
    other, leader = agents
    leader.leads, leader.heir = True, other

    assert (0, 1, 0) == (accept(), other.done, leader.done)


@pytest.mark.parametrize(
    ("typed", "done"), [("yes", 1), (" YES ", 1), ("y", 0), ("no", 0), ("", 0), ("\x04", 0)]
)
def test_a_person_is_asked_and_only_yes_is_yes(
    agents: tuple[Agent, Agent],
    terminal: int,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    done: int,
) -> None:
    """
    What is lost is shown before the question; without a yes, or at the end of input, nothing is
    done, and the command says so and exits with 1.
    """
    leader, _ = agents
    leader.leads = True
    os.write(terminal, typed.encode() + b"\n")
    code = accept(json=False, yes=False)
    out, err = capsys.readouterr()

    assert (1 - done, done) == (code, leader.done)
    assert out.index("first lost") < out.index("Accept this loss for good")
    assert ("continues at offset 3" in out) is bool(done)
    assert ("nothing was changed" in err) is not bool(done)


@pytest.mark.parametrize("json", [False, True])
def test_a_program_is_not_asked(
    agents: tuple[Agent, Agent], capsys: pytest.CaptureFixture[str], json: bool
) -> None:
    """
    Without a terminal, or for JSON, only --yes accepts anything; to look at it is --dry-run.
    """
    leader, _ = agents
    leader.leads = True
    code = accept(json=json, yes=False)
    out, err = capsys.readouterr()
    looked = accept(json=json, yes=False, dry_run=True)
    nothing = capsys.readouterr().err

    assert (1, 0, 0) == (code, leader.done, looked)
    assert "Accept this loss" not in out
    assert ("nothing was changed" in err, "nothing was changed" in nothing) == (True, False)
