"""What Kafka's tools show of members' hosts."""

from dataclasses import replace

import pytest

from driftlog_agents.handlers.common.context import RequestContext
from driftlog_agents.handlers.common.coordinator_lookup import client_host

CONTEXT = RequestContext(api_version=0, client_id=None, client_host="", listener="PLAINTEXT")


@pytest.mark.parametrize(
    ("connected", "shown"), [("10.0.0.1:5000", "/10.0.0.1"), ("[::1]:5000", "/::1")]
)
def test_a_host_is_shown_as_java_writes_it(connected: str, shown: str) -> None:
    """
    Without the brackets that an IPv6 address has before a port.
    """
    assert shown == client_host(replace(CONTEXT, client_host=connected))
