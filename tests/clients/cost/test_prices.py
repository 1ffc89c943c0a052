"""Prices come from one file; what overrides them is checked.

If it failed: a typing error in a price would pass unseen.
"""

from importlib.resources import files

import pytest

from driftlog.cost.prices import PriceError, read_prices

TEXT = files("driftlog.cost").joinpath("prices.json").read_text()


def test_the_file_has_every_price_its_date_and_its_source() -> None:
    """
    And the price of a PUT that docs/cost.md states.
    """
    found = read_prices(TEXT)

    assert 0.005 == found.put_per_1000
    assert found.source
    assert found.date


def test_later_overrides_win() -> None:
    """
    Also as text, as the command line gives them.
    """
    found = read_prices(TEXT, {"machine_hour": 0.05}, {"machine_hour": "0.04", "date": "today"})

    assert (0.04, "today", 0.005) == (found.machine_hour, found.date, found.put_per_1000)


@pytest.mark.parametrize(
    ("text", "override", "error"),
    [
        ("{", {}, "no JSON"),
        ("[]", {}, "no JSON object"),
        ("{}", {}, "is missing"),
        (TEXT, {"put": 1}, "unknown price 'put'"),
        (TEXT, {"put_per_1000": "cheap"}, "no number: 'cheap'"),
        (TEXT, {"put_per_1000": -1}, "put_per_1000 is -1"),
        (TEXT, {"put_per_1000": "nan"}, "put_per_1000 is nan"),
    ],
)
def test_wrong_prices_are_named(text: str, override: dict[str, object], error: str) -> None:
    """
    No bill is made of them.
    """
    with pytest.raises(PriceError, match=error):
        read_prices(text, override)


def test_only_prices_are_offered() -> None:
    """
    Where a name is unknown; the file's date and source are none.
    """
    with pytest.raises(PriceError) as error:
        read_prices(TEXT, {"foo": 3})

    _, _, offered = str(error.value).partition("there are ")
    assert "machine_hour" in offered.split(", ")
    assert not {"date", "source", "machine", "metadata_machine"} & set(offered.split(", "))
