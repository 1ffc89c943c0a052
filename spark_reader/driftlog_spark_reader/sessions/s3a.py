"""The packages and settings of S3A, Hadoop's file system for S3.

    Hadoop 3.5.0 (PySpark 4.2 and 4.3)   hadoop-aws:3.5.0  awssdk bundle:2.35.4

An older bundle fails with ``NoSuchFieldError: CRC64_NVME``.  hadoop-aws brings
analyticsaccelerator-s3 along; without it S3A lists nothing, whatever its input stream.

Pure.
"""

from collections.abc import Mapping
from typing import Final

from driftlog_spark_reader.common.s3_access import S3Access

BUNDLES: Final = {"3.5.0": "2.35.4"}
"""Versions of the AWS SDK's bundle by Hadoop's version."""

CLASSES: Final = {
    "org.apache.hadoop.fs.s3a.S3AFileSystem": "org.apache.hadoop:hadoop-aws",
    "software.amazon.awssdk.services.s3.S3AsyncClient": "software.amazon.awssdk:bundle",
    "software.amazon.s3.analyticsaccelerator.S3SeekableInputStreamFactory": (
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3"
    ),
}
"""Classes that S3A needs, and the packages that have them."""

PREFIX: Final = "spark.hadoop.fs.s3a."

DEFAULTS: Final = {
    # The default of Hadoop 3.5, "analytics", needs the jar of the AWS Common Runtime, too.
    f"{PREFIX}input.stream.type": "classic",
    # Keys of the session, and then where every AWS SDK looks: S3A's own list has no profiles and no
    # web identities.
    f"{PREFIX}aws.credentials.provider": (
        "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,"
        "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
        "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    ),
}
"""Settings of a session that the user asks nothing about."""

# Of ~/.aws/credentials alone, unlike AWS_PROFILE, which DefaultCredentialsProvider reads.
_PROFILE_PROVIDER: Final = "org.apache.hadoop.fs.s3a.auth.ProfileAWSCredentialsProvider"


def packages(hadoop_version: str) -> str:
    """What ``spark.jars.packages`` names.

    Raises:
        LookupError: the bundle for this Hadoop is not known.
    """
    bundle = BUNDLES[hadoop_version]
    return f"org.apache.hadoop:hadoop-aws:{hadoop_version},software.amazon.awssdk:bundle:{bundle}"


def settings(access: S3Access) -> dict[str, str]:
    """The settings of a session that say what *access* says, and no others."""
    found: dict[str, str | None] = {
        "endpoint": access.endpoint_url,
        "endpoint.region": access.region,
        "access.key": access.access_key_id,
        "secret.key": access.secret_access_key,
        "session.token": access.session_token,
    }
    if access.endpoint_url is not None:
        found["connection.ssl.enabled"] = _word(access.endpoint_url.startswith("https://"))
    if access.endpoint_url is not None or access.path_style is not None:
        found["path.style.access"] = _word(access.uses_path_style)
    if access.profile is not None:
        found["aws.credentials.provider"] = _PROFILE_PROVIDER
        found["auth.profile.name"] = access.profile
    return {f"{PREFIX}{name}": value for name, value in found.items() if value is not None}


def with_packages(config: Mapping[str, str], wanted: str) -> str:
    """``spark.jars.packages`` of *config* and of *wanted*; those of *config* win."""
    given = [name for name in config.get("spark.jars.packages", "").split(",") if name.strip()]
    artifacts = {_artifact(name) for name in given}
    return ",".join([*given, *(w for w in wanted.split(",") if _artifact(w) not in artifacts)])


def _artifact(package: str) -> tuple[str, ...]:
    return tuple(package.strip().split(":")[:2])


def _word(value: bool) -> str:
    return "true" if value else "false"
