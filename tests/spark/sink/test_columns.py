"""A DataFrame that Spark's Kafka sink takes or refuses is taken or refused, in the same words.

If it failed: a job would write the wrong column as the value, or learn of a missing topic from a
task.
Pure.
"""

import pytest

from driftlog_spark_reader.sink.columns import Column, RecordColumns, record_columns

HEADERS = "array<struct<key:string,value:binary>>"


def columns(**types: str) -> list[Column]:
    return [Column(name, type_) for name, type_ in types.items()]


def test_each_field_has_its_column_wherever_it_stands() -> None:
    """
    Other columns are left out, timestamp among them: Spark 4.2 does not write it.
    """
    given = columns(
        timestamp="timestamp",
        partition="int",
        headers=HEADERS,
        value="binary",
        count="bigint",
        key="string",
        topic="string",
    )

    found = record_columns(given, None)

    assert RecordColumns(topic=6, key=5, value=3, headers=2, partition=1) == found


def test_the_value_alone_is_enough_with_a_topic() -> None:
    """
    Key, headers and partition are optional.
    """
    found = record_columns(columns(value="string"), "t")

    assert RecordColumns(topic=None, key=None, value=0, headers=None, partition=None) == found


def test_the_option_wins_over_the_column_of_any_type() -> None:
    """
    With the option, the column topic is one of the others.
    """
    assert None is record_columns(columns(topic="int", value="string"), "t").topic


def test_the_first_of_two_columns_counts() -> None:
    """
    As Spark finds it.
    """
    given = [Column("value", "string"), Column("value", "bigint")]

    assert 0 == record_columns(given, "t").value


def test_header_fields_go_by_place() -> None:
    """
    Spark compares types without regard to the case of names.
    """
    type_ = "array<struct<Key:string,VALUE:binary>>"

    assert 1 == record_columns(columns(value="string", headers=type_), "t").headers


@pytest.mark.parametrize(
    ("given", "topic", "message"),
    [
        (
            columns(value="string"),
            None,
            "topic option required when no 'topic' attribute is present. Use the topic option for "
            "setting a topic.",
        ),
        (columns(key="string"), "t", "Required attribute 'value' not found"),
        (columns(VALUE="string"), "t", "Required attribute 'value' not found"),
        (
            columns(topic="binary", value="string"),
            None,
            "topic attribute unsupported type binary. topic must be a(n) string",
        ),
        (
            columns(key="int", value="string"),
            "t",
            "key attribute unsupported type int. key must be a(n) string or binary",
        ),
        (
            columns(value="struct<a:int>"),
            "t",
            "value attribute unsupported type struct<a:int>. value must be a(n) string or binary",
        ),
        (
            columns(value="string collate UNICODE"),
            "t",
            "value attribute unsupported type string collate UNICODE. value must be a(n) string or "
            "binary",
        ),
        (
            columns(value="string", headers="map<string,binary>"),
            "t",
            "headers attribute unsupported type map<string,binary>. headers must be a(n) "
            "array<struct<key:string,value:binary>>",
        ),
        (
            columns(value="string", partition="bigint"),
            "t",
            "partition attribute unsupported type bigint. partition must be a(n) int",
        ),
    ],
)
def test_other_columns_are_refused(given: list[Column], topic: str | None, message: str) -> None:
    """
    In Spark's words.
    """
    with pytest.raises(ValueError) as raised:
        record_columns(given, topic)

    assert message == str(raised.value)
