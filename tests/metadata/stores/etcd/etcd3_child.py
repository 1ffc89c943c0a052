"""Print what is in etcd, read with the package `etcd3`: an implementation that is not ours.

    PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python python etcd3_child.py HOST PORT PREFIX

One line of JSON for each key, in ascending order: key, value (base64), create and mod revision,
lease.  A process of its own, because the package needs protobuf in pure Python.
Shell.
"""

import base64
import json
import sys

import etcd3


def main() -> None:
    """Read and print."""
    host, port, prefix = sys.argv[1:]
    client = etcd3.client(host=host, port=int(port))
    for value, about in client.get_prefix(prefix, sort_order="ascend"):
        row = {
            "key": about.key.decode(),
            "value": base64.b64encode(value).decode(),
            "create_revision": about.create_revision,
            "mod_revision": about.mod_revision,
            "lease_id": about.lease_id,
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
