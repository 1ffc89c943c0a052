"""How a bucket is reached: the endpoint, region and keys of arguments and of ``AWS_*`` variables.

    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL   a server that is not Amazon's
    AWS_REGION, AWS_DEFAULT_REGION          with such a server, us-east-1 when there is none
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    AWS_PROFILE                             read by the AWS SDKs themselves

As in the SDKs, an argument precedes a variable, and keys in variables precede ``AWS_PROFILE``.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_REGION_OF_OTHER_SERVERS: Final = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """What is None is left to the AWS SDK of each engine."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool | None = None
    """None: with an endpoint only, as Amazon's DNS alone has a name for every bucket."""
    profile: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def uses_path_style(self) -> bool:
        """Whether the bucket's name is in the path of URLs, not in the host."""
        return self.endpoint_url is not None if self.path_style is None else self.path_style


def s3_access(asked: S3Access, environ: Mapping[str, str]) -> S3Access:
    """*asked*, with the variables of *environ* where it is None.

    Raises:
        ValueError: there is half of a pair of keys, or the endpoint is no URL.
    """
    endpoint = asked.endpoint_url or _first(environ, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise ValueError(
            f"the endpoint {endpoint!r} is no URL: write http://HOST:PORT or https://…"
        )
    region = asked.region or _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION")
    keys = (asked.access_key_id, asked.secret_access_key, asked.session_token)
    if keys == (None, None, None) and asked.profile is None:
        keys = (
            _first(environ, "AWS_ACCESS_KEY_ID"),
            _first(environ, "AWS_SECRET_ACCESS_KEY"),
            _first(environ, "AWS_SESSION_TOKEN"),
        )
    if (keys[0] is None) != (keys[1] is None):
        missing = "the secret access key" if keys[1] is None else "the access key id"
        raise ValueError(f"{missing} is missing: S3 needs both keys, or none of them")
    return S3Access(
        endpoint_url=endpoint,
        region=region or (_REGION_OF_OTHER_SERVERS if endpoint else None),
        path_style=asked.path_style,
        profile=asked.profile,
        access_key_id=keys[0],
        secret_access_key=keys[1],
        session_token=keys[2] if keys[0] is not None else None,
    )


def _first(environ: Mapping[str, str], *names: str) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)
