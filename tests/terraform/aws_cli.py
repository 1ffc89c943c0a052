"""A stand-in for the AWS CLI: ``aws SERVICE OPERATION --option value …``.

The scripts on machines call the CLI, which is no package of the tests.  This one takes options as
the CLI does (``--with-decryption``, JSON, ``Name=value`` for a list of dimensions), prints the
answer as JSON, and exits with 254 and S3's or SSM's error code on standard error.

Requests go through botocore, but for those of SSM, of which a member's start sends a dozen: loading
botocore takes 0.7 s of CPU each time.

Shell.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def install(folder: Path) -> Path:
    """A folder for PATH with this as ``aws``."""
    from tests.support.components import REPOSITORY  # a command needs it not

    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "aws"
    command.write_text(
        "#!/bin/sh\n"
        f'PYTHONPATH={REPOSITORY} exec {sys.executable} -m tests.terraform.aws_cli "$@"\n'
    )
    command.chmod(0o755)
    return folder


def main(arguments: list[str]) -> int:
    service, operation, *rest = arguments
    if service == "ssm":
        return _ssm(operation, rest)
    return _through_botocore(service, operation, rest)


def _ssm(operation: str, options: list[str]) -> int:
    """A request in SSM's JSON; moto looks at the service in the signature, and not at the rest."""
    asked: dict[str, Any] = {}
    given = iter(word for option in options for word in _split(option))
    for option in given:
        name = _camel(option.removeprefix("--"))
        if name in ("WithDecryption", "Overwrite"):
            asked[name] = True
        elif name == "Output":
            next(given)
        else:
            asked[name] = next(given)
    scope = f"{os.environ['AWS_ACCESS_KEY_ID']}/20260101/{os.environ['AWS_DEFAULT_REGION']}/ssm"
    request = urllib.request.Request(
        os.environ["AWS_ENDPOINT_URL"],
        json.dumps(asked).encode(),
        {
            "Content-Type": "application/x-amz-json-1.1",
            "X-Amz-Target": f"AmazonSSM.{_camel(operation)}",
            "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}/aws4_request, "
            "SignedHeaders=host, Signature=0",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            print(answer.read().decode())
    except urllib.error.HTTPError as error:
        code = json.loads(error.read())["__type"].rpartition("#")[2]
        print(f"An error occurred ({code})", file=sys.stderr)
        return 254
    except OSError as error:
        print(f"Could not connect to the endpoint URL: {error}", file=sys.stderr)
        return 255
    return 0


def _camel(name: str) -> str:
    """``get-parameter`` as ``GetParameter``."""
    return "".join(word.capitalize() for word in name.split("-"))


def _through_botocore(service: str, operation: str, rest: list[str]) -> int:
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import ClientError

    client = botocore.session.get_session().create_client(
        service,
        endpoint_url=os.environ["AWS_ENDPOINT_URL"],
        region_name=os.environ["AWS_DEFAULT_REGION"],
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )
    try:
        if (service, operation) == ("s3", "cp"):
            source, target = [word for word in rest if not word.startswith("--")][:2]
            bucket, _, key = target.removeprefix("s3://").partition("/")
            client.put_object(Bucket=bucket, Key=key, Body=Path(source).read_bytes())
            return 0
        answer = _called(client, operation, rest)
    except ClientError as error:
        print(f"An error occurred ({error.response['Error']['Code']})", file=sys.stderr)
        return 254
    answer.pop("ResponseMetadata", None)
    print(json.dumps(answer, default=str))
    return 0


def _called(client: Any, operation: str, options: list[str]) -> dict[str, Any]:
    from botocore import xform_name

    name = next(
        name
        for name in client.meta.service_model.operation_names
        if xform_name(name, "-") == operation
    )
    shape = client.meta.service_model.operation_model(name).input_shape
    members = {xform_name(member, "-"): (member, of) for member, of in shape.members.items()}
    simple: dict[str, Any] = {}
    words = (word for option in options for word in _split(option))
    given = iter(words)
    for option in given:
        if option == "--output":
            next(given)
            continue
        known = members.get(option.removeprefix("--"))
        if known is None:  # of the one datum that PutMetricData's shorthand describes
            simple[option.removeprefix("--")] = next(given)
            continue
        member, of = known
        if of.type_name == "boolean":
            simple[member] = True
        else:
            text = next(given)
            simple[member] = json.loads(text) if of.type_name in ("list", "structure") else text
    if operation == "put-metric-data" and "MetricData" not in simple:
        dimensions = [given.partition("=") for given in simple.pop("dimensions").split(",")]
        datum = {
            "MetricName": simple.pop("metric-name"),
            "Unit": simple.pop("unit"),
            "Value": float(simple.pop("value")),
            "Dimensions": [{"Name": name, "Value": value} for name, _, value in dimensions],
        }
        simple["MetricData"] = [datum]
    answer: dict[str, Any] = getattr(client, xform_name(name))(**simple)
    return answer


def _split(option: str) -> list[str]:
    """``--name=value`` as two words."""
    name, equals, value = option.partition("=")
    return [name, value] if equals and name.startswith("--") else [option]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
