"""The command and the Python client read an address alike, as librdkafka does.

If it failed: `-b host` would be refused where `bootstrap_servers="host"` connects.
"""

import pytest

from driftlog.common.bootstrap_probe import split_address


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("agent-1", ("agent-1", 9092)),
        ("agent-1:9093", ("agent-1", 9093)),
        (" SSL://agent-1:9093 ", ("agent-1", 9093)),
        ("[::1]", ("::1", 9092)),
        ("[::1]:9093", ("::1", 9093)),
    ],
)
def test_the_port_is_9092_where_none_is_given(address: str, expected: tuple[str, int]) -> None:
    """
    Kafka's tools demand a port; librdkafka has this default, and so has the command.
    """
    assert expected == split_address(address)


@pytest.mark.parametrize("address", [":9092", "agent-1:", "agent-1:port", "[::1]9092", "agent:²"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    """
    The error shows the address and the form.
    """
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(address)
