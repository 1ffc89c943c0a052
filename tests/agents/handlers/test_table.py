"""Each API version that is advertised has a handler, and no other."""

from driftlog_agents.handlers.common.api_versions_table import ADVERTISED
from driftlog_agents.handlers.table import HANDLERS
from driftlog_agents.protocol.api import ApiKey


def test_what_is_advertised_has_a_handler() -> None:
    """
    An API is advertised when it is answered, and not before; the hot path answers two.
    """
    assert {*HANDLERS, ApiKey.PRODUCE, ApiKey.FETCH} == set(ADVERTISED)
