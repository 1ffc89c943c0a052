"""How pyarrow and Polars reach a bucket that the ``AWS_*`` variables and profiles describe.

Shell.
"""

import os
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from botocore.exceptions import BotoCoreError
from botocore.session import get_session

from driftlog_spark_reader.common.errors import StorageError
from driftlog_spark_reader.common.s3_access import S3Access, s3_access

_KEYS_LAST_S: Final = 300
"""botocore renews keys at least 10 minutes before they expire."""


def environment_access() -> S3Access:
    """What the variables say, and the profile where they say nothing.

    Raises:
        StorageError: the variables are not consistent, or there is no such profile.
    """
    try:
        profile: dict[str, Any] = get_session().get_scoped_config()
        return s3_access(
            S3Access(), {**_of_profile(profile), **{k: v for k, v in os.environ.items() if v}}
        )
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"the settings of AWS: {error}") from error


def arrow_filesystem(access: S3Access) -> pafs.S3FileSystem:
    """S3 for pyarrow.  Without keys in variables, it looks for them where every AWS SDK does."""
    options: dict[str, Any] = {}
    if access.endpoint_url is not None:
        url = urlsplit(access.endpoint_url)
        options = {"scheme": url.scheme, "endpoint_override": url.netloc + url.path.rstrip("/")}
    return pafs.S3FileSystem(
        access_key=access.access_key_id,
        secret_key=access.secret_access_key,
        session_token=access.session_token,
        region=access.region,
        **options,
    )


def polars_options(access: S3Access) -> dict[str, str]:
    """The ``storage_options`` of Polars."""
    options = {"aws_region": access.region, "aws_endpoint_url": access.endpoint_url}
    if access.endpoint_url is not None and access.endpoint_url.startswith("http://"):
        options["aws_allow_http"] = "true"
    return {name: value for name, value in options.items() if value is not None}


def polars_credentials() -> Callable[[], tuple[dict[str, str | None], int | None]]:
    """The ``credential_provider`` of Polars: keys as botocore finds and renews them.

    Raises:
        StorageError: there are no keys.
    """
    found = get_session().get_credentials()
    if found is None:
        raise StorageError(
            "there are no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE"
        )

    def provide() -> tuple[dict[str, str | None], int | None]:
        keys = found.get_frozen_credentials()
        named = {
            "aws_access_key_id": keys.access_key,
            "aws_secret_access_key": keys.secret_key,
            "aws_session_token": keys.token,
        }
        return {k: v for k, v in named.items() if v}, int(time.time()) + _KEYS_LAST_S

    return provide


def _of_profile(profile: dict[str, Any]) -> dict[str, str]:
    """Its region and endpoint, as variables; keys are the SDKs' affair, which renew them."""
    named = {"AWS_DEFAULT_REGION": "region", "AWS_ENDPOINT_URL": "endpoint_url"}
    return {
        variable: str(profile[name])
        for variable, name in named.items()
        if isinstance(profile.get(name), str)
    }
