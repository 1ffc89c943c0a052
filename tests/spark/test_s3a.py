"""S3A gets the packages of Spark's Hadoop, and the settings that were asked for and no others."""

import pytest

from driftlog_spark_reader.common.s3_access import S3Access
from driftlog_spark_reader.sessions import s3a

OURS = "org.apache.hadoop:hadoop-aws:3.5.0,software.amazon.awssdk:bundle:2.35.4"


def test_packages_are_those_of_the_hadoop_version() -> None:
    """
    Another Hadoop's bundle fails at the first request: it is not guessed.
    """
    assert OURS == s3a.packages("3.5.0")
    with pytest.raises(LookupError):
        s3a.packages("3.3.4")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", OURS),
        ("org.apache.iceberg:iceberg:1", f"org.apache.iceberg:iceberg:1,{OURS}"),
        (
            "software.amazon.awssdk:bundle:2.36.0",
            "software.amazon.awssdk:bundle:2.36.0,org.apache.hadoop:hadoop-aws:3.5.0",
        ),
    ],
)
def test_packages_of_the_user_stay(given: str, expected: str) -> None:
    """
    Those of a table format beside S3A's; another version of S3A's instead of it.
    """
    assert expected == s3a.with_packages({"spark.jars.packages": given}, OURS)


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        (S3Access(), {}),
        (S3Access(region="eu-north-1"), {"endpoint.region": "eu-north-1"}),
        (S3Access(path_style=True), {"path.style.access": "true"}),
        (
            S3Access(endpoint_url="http://127.0.0.1:9000", region="us-east-1"),
            {
                "endpoint": "http://127.0.0.1:9000",
                "endpoint.region": "us-east-1",
                "connection.ssl.enabled": "false",
                "path.style.access": "true",
            },
        ),
        (
            S3Access(access_key_id="a", secret_access_key="b", session_token="c"),
            {"access.key": "a", "secret.key": "b", "session.token": "c"},
        ),
        (
            S3Access(profile="work"),
            {
                "aws.credentials.provider": (
                    "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"
                ),
                "auth.profile.name": "work",
            },
        ),
    ],
)
def test_settings_are_those_asked_for(access: S3Access, expected: dict[str, str]) -> None:
    """
    What is None keeps S3A's own default, or what the cluster has configured.
    """
    assert {f"spark.hadoop.fs.s3a.{name}": value for name, value in expected.items()} == (
        s3a.settings(access)
    )
