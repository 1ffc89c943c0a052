"""The quota of an etcd before 3.6, which only its metrics tell.

    GET {endpoint}/metrics    etcd_server_quota_backend_bytes 2.147483648e+09

etcd serves them on the port where it serves clients.
Adapter.
"""

import re
import ssl
import urllib.request
from http.client import HTTPException
from typing import Final

from driftlog_metadata.stores.etcd.etcd_client import EtcdSettings

_QUOTA: Final = re.compile(rb"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)

_MAX_BYTES: Final = 8 * 1024 * 1024
"""etcd's metrics come to some 100 KiB."""


def quota_from_metrics(settings: EtcdSettings, url: str) -> int | None:
    """The ``--quota-backend-bytes`` of the member at *url*; None: the metrics do not have it.

    Blocks: call it in a thread.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    timeout_s = settings.try_timeout_ms / 1000
    try:
        if url.startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=_ssl_context(settings)))
        opener = urllib.request.build_opener(*handlers)
        with opener.open(f"{url}/metrics", timeout=timeout_s) as answer:
            found = _QUOTA.search(answer.read(_MAX_BYTES))
        return int(float(found[1])) or None if found else None
    except (OSError, ValueError, HTTPException):  # URLError and SSLError are the first
        return None


def _ssl_context(settings: EtcdSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.certificate_file is not None:
        context.load_cert_chain(settings.certificate_file, settings.key_file)
    return context
