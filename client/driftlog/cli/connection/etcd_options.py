"""The options that say where etcd is, named as etcdctl's.

Root.
"""

import argparse
import os
from pathlib import Path
from typing import Any, Final

from driftlog.cli.common.parsers import Parser

_ETCD_PASSWORD: Final = "DRIFTLOG_ETCD_PASSWORD"  # the variable's name


def add_etcd_options(parser: Parser) -> None:
    """Add the options."""
    parser.add_argument(
        "--etcd",
        type=_urls,
        metavar="URL[,URL]",
        help="members of the etcd with the metadata, http://HOST:2379 or https:// (default: the "
        "embedded metadata store, in DIR)",
    )
    for name, of in (
        ("cacert", "the CA that signed the members' certificates"),
        ("cert", "the client's certificate"),
        ("key", "its key"),
    ):
        parser.add_argument(
            f"--etcd-{name}", type=Path, metavar="FILE", help=f"PEM file of {of}, for https"
        )
    parser.add_argument(
        "--etcd-user",
        metavar="USER",
        help=f"user of etcd; the password is that of the variable {_ETCD_PASSWORD}",
    )


def etcd_settings(options: argparse.Namespace) -> Any:
    """The settings of etcd; None without --etcd.

    Raises:
        ValueError: options of etcd without --etcd.
    """
    from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings  # noqa: PLC0415  # an extra

    if options.etcd is None:
        if options.etcd_cacert or options.etcd_cert or options.etcd_key or options.etcd_user:
            raise ValueError("--etcd-… without --etcd: where is it?")
        return None
    return EtcdSettings(
        endpoints=options.etcd,
        ca_file=options.etcd_cacert,
        certificate_file=options.etcd_cert,
        key_file=options.etcd_key,
        user=options.etcd_user,
        password=os.environ.get(_ETCD_PASSWORD, ""),
    )


def _urls(text: str) -> tuple[str, ...]:
    if "@" in text:  # It may have a password: the message does not repeat it.
        raise argparse.ArgumentTypeError(
            f"a URL of etcd has no user: give --etcd-user, and the password in {_ETCD_PASSWORD}"
        )
    return tuple(url.strip() for url in text.split(","))
