"""An AWS account on moto's server, and what its parts that do not work need.

moto 5.2 answers nearly all that Terraform asks.  What it cannot do is overridden in the copy that a
test applies, never in the modules:

* a bucket policy that denies with a condition makes the bucket unusable: another policy stands in;
* detailed monitoring of an instance hangs: it is off;
* tags of the provider make Terraform see a change of the launch template at each plan, and moto
  starts no machine from a second version of one: there are none;
* interfaces of ended machines stay attached, and cannot be deleted: they leave the state first.

Shell.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.support.process_usage import free_port, stop_process, wait_until
from tests.terraform.checkout import terraform

REGION: Final = "eu-central-1"
BUCKET: Final = "example-log"
"""As docs/deploy.md has both."""

_PROVIDER: Final = """
provider "aws" {
  s3_use_path_style           = true
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  max_retries                 = 2

  default_tags {
    tags = {}
  }
}
"""

_BUCKET: Final = """
resource "aws_s3_bucket_policy" "this" {
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { AWS = local.account_root }
      Action    = "s3:GetBucketLocation"
      Resource  = local.bucket_arn
    }]
  })
}
"""

_STATE: Final = """
resource "aws_s3_bucket_policy" "state" {
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { AWS = "arn:aws:iam::123456789012:root" }
      Action    = "s3:GetBucketLocation"
      Resource  = aws_s3_bucket.state.arn
    }]
  })
}
"""

_METADATA: Final = """
resource "aws_instance" "this" {
  monitoring = false
}
"""


@contextlib.contextmanager
def moto_account(folder: Path) -> Iterator[Mapping[str, str]]:
    """The environment of an account with AWS's own policies, which no other test shares."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "moto.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            env=os.environ | {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: b"Running on" in log.read_bytes(), process, 60, log)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
    finally:
        stop_process(process, 30)


def prepared(checkout: Path) -> Path:
    """examples/complete in *checkout*, as docs/deploy.md begins with it, for an account on moto."""
    wheels = checkout.parent / "dist" / "wheels"
    wheels.mkdir(parents=True)
    (wheels / "driftlog-0.0.0-py3-none-any.whl").write_text("in place of the wheel\n")
    release = checkout.parent / "etcd-v3.6.16-linux-arm64.tar.gz"
    release.write_text("in place of etcd's release\n")
    example = checkout / "examples" / "complete"
    for folder, overrides in {
        example: _PROVIDER,
        checkout / "examples" / "remote-state": _PROVIDER + _STATE,
        checkout / "modules" / "bucket": _BUCKET,
        checkout / "modules" / "metadata": _METADATA,
    }.items():
        (folder / "moto_override.tf").write_text(overrides)
    (example / "test.auto.tfvars").write_text(
        "deletion_protection = false\n"
        "seal_min_size = 1\n"
        "seal_max_size = 2\n"
        "agent_network_baseline_mbit_s = 1000\n"
        'broker_configs = { "auto.create.topics.enable" = "true", "max.connections" = "5000", '
        '"max.connections.per.ip" = "500" }\n'
    )
    return example


def applied(example: Path, environment: Mapping[str, str], *variables: str) -> str:
    """What ``terraform apply`` prints."""
    given = [f"-var={variable}" for variable in variables]
    command = ("apply", "-auto-approve", "-parallelism=30", *given)
    return terraform(example, *command, environment=environment)


def destroyed(example: Path, environment: Mapping[str, str]) -> str:
    """What ``terraform destroy`` prints."""
    interfaces = ("state", "rm", "module.metadata.aws_network_interface.this")
    terraform(example, *interfaces, environment=environment)
    command = ("destroy", "-auto-approve", "-parallelism=30")
    return terraform(example, *command, environment=environment)
