"""Arguments and AWS's variables say how a bucket is reached, in the order of the AWS SDKs."""

import pytest

from driftlog_spark_reader.common.s3_access import S3Access, s3_access

KEYS = {
    "AWS_ACCESS_KEY_ID": "id",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SESSION_TOKEN": "token",
}


@pytest.mark.parametrize(
    ("asked", "environ", "expected"),
    [
        (S3Access(), {}, S3Access()),
        (S3Access(), {"AWS_REGION": "eu-north-1"}, S3Access(region="eu-north-1")),
        (
            S3Access(),
            {"AWS_REGION": "", "AWS_DEFAULT_REGION": "eu-north-1"},
            S3Access(region="eu-north-1"),
        ),
        (
            S3Access(),
            {"AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": "https://b"},
            S3Access(endpoint_url="https://b", region="us-east-1"),
        ),
        (
            S3Access(endpoint_url="http://c", region="r", path_style=False),
            {"AWS_ENDPOINT_URL": "http://a:1", "AWS_REGION": "eu-north-1"},
            S3Access(endpoint_url="http://c", region="r", path_style=False),
        ),
        (
            S3Access(),
            KEYS,
            S3Access(access_key_id="id", secret_access_key="secret", session_token="token"),
        ),
        (
            S3Access(access_key_id="a", secret_access_key="b"),
            KEYS,
            S3Access(access_key_id="a", secret_access_key="b"),
        ),
        (S3Access(profile="work"), KEYS, S3Access(profile="work")),
        (S3Access(), {"AWS_SESSION_TOKEN": "left over"}, S3Access()),
    ],
)
def test_arguments_precede_variables(
    asked: S3Access, environ: dict[str, str], expected: S3Access
) -> None:
    """
    Keys are taken together: those of two identities are never mixed.
    """
    assert expected == s3_access(asked, environ)


@pytest.mark.parametrize(
    ("asked", "environ", "said"),
    [
        (S3Access(access_key_id="a"), {}, "the secret access key is missing"),
        (S3Access(), {"AWS_SECRET_ACCESS_KEY": "b"}, "the access key id is missing"),
        (S3Access(endpoint_url="127.0.0.1:9000"), {}, "write http://"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    asked: S3Access, environ: dict[str, str], said: str
) -> None:
    """
    Before any request.
    """
    with pytest.raises(ValueError, match=said):
        s3_access(asked, environ)


def test_path_style_goes_with_an_endpoint() -> None:
    """
    Only Amazon's DNS has a name for every bucket.
    """
    endpoint = "http://127.0.0.1:9000"

    assert [False, True, False, True] == [
        access.uses_path_style
        for access in (
            S3Access(),
            S3Access(endpoint_url=endpoint),
            S3Access(endpoint_url=endpoint, path_style=False),
            S3Access(path_style=True),
        )
    ]


def test_keys_are_not_printed() -> None:
    """
    A notebook shows what a cell ends with.
    """
    text = repr(S3Access(access_key_id="AKIA", secret_access_key="hidden", session_token="tok"))

    assert not any(secret in text for secret in ("AKIA", "hidden", "tok"))
