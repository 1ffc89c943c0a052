"""The messages of etcd's gRPC interface that the adapter speaks, made from a table at run time.

    Name    field:type=number …      as on the wire; a field that is not here is skipped

They live in a descriptor pool and a proto package of their own, so that another etcd
client in the same process (the package `etcd3` registers ``etcdserverpb``) does not
conflict.  The wire has numbers and types, never names; only the paths of the methods
are etcd's.  Enums are int32: the same on the wire.

Source: etcd's api/etcdserverpb/rpc.proto, api/mvccpb/kv.proto (3.4 to 3.6).
Adapter.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from driftlog_metadata.stores.store import KeyValue

_PACKAGE: Final = "driftlog_etcd"

# A `*` in front of the type: repeated.  A `?` in front: a member of the message's one oneof,
# of which the empty value is sent too.
_TABLE: Final = """
ResponseHeader          cluster_id:uint64=1 member_id:uint64=2 revision:int64=3 raft_term:uint64=4
KeyValue                key:bytes=1 create_revision:int64=2 mod_revision:int64=3 version:int64=4 value:bytes=5 lease:int64=6

RangeRequest            key:bytes=1 range_end:bytes=2 limit:int64=3 revision:int64=4 keys_only:bool=8
RangeResponse           header:ResponseHeader=1 kvs:*KeyValue=2 more:bool=3 count:int64=4
PutRequest              key:bytes=1 value:bytes=2 lease:int64=3
PutResponse             header:ResponseHeader=1
DeleteRangeRequest      key:bytes=1 range_end:bytes=2
DeleteRangeResponse     header:ResponseHeader=1 deleted:int64=2
RequestOp               request_range:?RangeRequest=1 request_put:?PutRequest=2 request_delete_range:?DeleteRangeRequest=3
ResponseOp              response_range:?RangeResponse=1 response_put:?PutResponse=2 response_delete_range:?DeleteRangeResponse=3
Compare                 result:int32=1 target:int32=2 key:bytes=3 version:?int64=4 create_revision:?int64=5 mod_revision:?int64=6 value:?bytes=7 range_end:bytes=64
TxnRequest              compare:*Compare=1 success:*RequestOp=2 failure:*RequestOp=3
TxnResponse             header:ResponseHeader=1 succeeded:bool=2 responses:*ResponseOp=3

LeaseGrantRequest       TTL:int64=1 ID:int64=2
LeaseGrantResponse      header:ResponseHeader=1 ID:int64=2 TTL:int64=3
LeaseRevokeRequest      ID:int64=1
LeaseRevokeResponse     header:ResponseHeader=1
LeaseKeepAliveRequest   ID:int64=1
LeaseKeepAliveResponse  header:ResponseHeader=1 ID:int64=2 TTL:int64=3

WatchRequest            create_request:?WatchCreateRequest=1
WatchCreateRequest      key:bytes=1 range_end:bytes=2 start_revision:int64=3 fragment:bool=8
WatchResponse           header:ResponseHeader=1 watch_id:int64=2 created:bool=3 canceled:bool=4 compact_revision:int64=5 cancel_reason:string=6 fragment:bool=7 events:*Event=11
Event                   type:int32=1 kv:KeyValue=2

AuthenticateRequest     name:string=1 password:string=2
AuthenticateResponse    header:ResponseHeader=1 token:string=2

StatusRequest
StatusResponse          header:ResponseHeader=1 version:string=2 db_size:int64=3 leader:uint64=4 errors:*string=8 db_size_in_use:int64=9 is_learner:bool=10 db_size_quota:int64=12
"""  # noqa: E501 - a row is a message

COMPARE_EQUAL: Final = 0
COMPARE_LESS: Final = 2
COMPARE_CREATE_REVISION: Final = 1
COMPARE_MOD_REVISION: Final = 2
COMPARE_VALUE: Final = 3
"""Numbers of `Compare.CompareResult` and `Compare.CompareTarget`."""

EVENT_DELETE: Final = 1
"""Of `Event.EventType`; the other one, PUT, is 0."""


def _file() -> descriptor_pb2.FileDescriptorProto:
    """The table as a file descriptor, as protoc makes it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="driftlog_etcd.proto", package=_PACKAGE, syntax="proto3"
    )
    for row in filter(None, _TABLE.splitlines()):
        name, *fields = row.split()
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(message, *field.replace("=", ":").split(":"))
    return file


def _add_field(message: Any, name: str, spelled: str, number: str) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    type_name = spelled.lstrip("*?")
    field = message.field.add(
        name=name,
        number=int(number),
        label=types.LABEL_REPEATED if spelled.startswith("*") else types.LABEL_OPTIONAL,
    )
    if hasattr(types, f"TYPE_{type_name.upper()}"):
        field.type = getattr(types, f"TYPE_{type_name.upper()}")
    else:
        field.type = types.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"
    if spelled.startswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="one")
        field.oneof_index = 0


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())


def _message(name: str) -> Any:
    """The class of a message.  Any: protobuf makes it at run time, without static types."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


RangeRequest: Final = _message("RangeRequest")
RangeResponse: Final = _message("RangeResponse")
TxnRequest: Final = _message("TxnRequest")
TxnResponse: Final = _message("TxnResponse")
LeaseGrantRequest: Final = _message("LeaseGrantRequest")
LeaseGrantResponse: Final = _message("LeaseGrantResponse")
LeaseRevokeRequest: Final = _message("LeaseRevokeRequest")
LeaseRevokeResponse: Final = _message("LeaseRevokeResponse")
LeaseKeepAliveRequest: Final = _message("LeaseKeepAliveRequest")
LeaseKeepAliveResponse: Final = _message("LeaseKeepAliveResponse")
WatchRequest: Final = _message("WatchRequest")
WatchResponse: Final = _message("WatchResponse")
AuthenticateRequest: Final = _message("AuthenticateRequest")
AuthenticateResponse: Final = _message("AuthenticateResponse")
StatusRequest: Final = _message("StatusRequest")
StatusResponse: Final = _message("StatusResponse")


class Method:
    """One method of etcd: its path, its request and its answer."""

    __slots__ = ("path", "request", "response")

    def __init__(self, path: str, request: Any, response: Any) -> None:
        self.path = path
        self.request = request
        self.response = response


RANGE: Final = Method("/etcdserverpb.KV/Range", RangeRequest, RangeResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", TxnRequest, TxnResponse)
LEASE_GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest, LeaseGrantResponse)
LEASE_REVOKE: Final = Method(
    "/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest, LeaseRevokeResponse
)
LEASE_KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", LeaseKeepAliveRequest, LeaseKeepAliveResponse
)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", WatchRequest, WatchResponse)
AUTHENTICATE: Final = Method(
    "/etcdserverpb.Auth/Authenticate", AuthenticateRequest, AuthenticateResponse
)
STATUS: Final = Method("/etcdserverpb.Maintenance/Status", StatusRequest, StatusResponse)


def prefix_end(prefix: str) -> bytes:
    """The end of the range of keys that start with *prefix*: the first key behind them.

    UTF-8 has no byte 255, so there is always one.
    """
    key = prefix.encode()
    return key[:-1] + bytes([key[-1] + 1])


def key_value(message: Any) -> KeyValue:
    """etcd's key-value message as the port's `KeyValue`."""
    return KeyValue(
        message.key.decode(errors="backslashreplace"),
        message.value,
        message.create_revision,
        message.mod_revision,
        message.lease,
    )
