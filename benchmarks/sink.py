"""A broker that discards everything: it shows a client's own limit, without a broker's cost.

It answers ApiVersions, Metadata (any topic has as many partitions as
``--partitions`` says), CreateTopics, InitProducerId and Produce, always with success; base
offsets count up, so that clients believe it.  One thread a connection reads into one
warm buffer; a Produce request's records are skipped by their length.  An answer is made
once for each shape of request and patched afterwards.

    python -m benchmarks.sink [--port 9099] [--partitions 4]

Prints ``sink 127.0.0.1:PORT`` when it is ready.
Shell.
"""

import argparse
import socket
import struct
import threading

from benchmarks import wire
from benchmarks.batches import HEADER_BYTES

_APIS = (
    (wire.PRODUCE, 3, 8),
    (wire.METADATA, 4, 4),
    (wire.API_VERSIONS, 0, 2),
    (wire.CREATE_TOPICS, 4, 4),
    (wire.INIT_PRODUCER_ID, 0, 1),
)
_UNSUPPORTED_VERSION = 35
_BUFFER_BYTES = 1 << 20
_HEAD = struct.Struct(">ihhih")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class _Template:
    """The answer to every Produce request whose frame starts alike, with what to patch in it.

    *head_bytes* are those up to the records of the first partition; a request of several
    partitions gets no template, as where the second starts depends on the first.
    """

    __slots__ = ("answer", "key", "offset_at", "records_at")

    def __init__(self, key: bytes, answer: bytearray, offset_at: int, records_at: int) -> None:
        self.key, self.answer = key, answer
        self.offset_at, self.records_at = offset_at, records_at


class Sink:
    """Listens on 127.0.0.1; `serve` blocks."""

    def __init__(self, port: int, partitions: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._partitions = partitions
        self._next_offset = 0

    def serve(self) -> None:
        """Serve until `close`."""
        with self._listener:
            while True:
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Accept no more connections; open ones end with their clients."""
        self._listener.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        """Read all available bytes, answer all whole frames in one write."""
        buffer = bytearray(_BUFFER_BYTES)
        view = memoryview(buffer)
        filled = 0
        template: _Template | None = None
        with connection:
            while received := connection.recv_into(view[filled:]):
                filled += received
                at = 0
                answers = []
                while filled - at >= 4:
                    end = at + 4 + _I32.unpack_from(buffer, at)[0]
                    if end > filled:
                        break
                    if template and buffer[at + 12 : at + template.records_at] == template.key:
                        answers.append(self._patched(template, buffer, at))
                    else:
                        answer, template = self._answer(view[at:end])
                        answers.append(answer)
                    at = end
                if answers:
                    connection.sendall(b"".join(answers))
                view[: filled - at] = bytes(view[at:filled])
                filled -= at
                if filled >= 4:
                    need = 4 + _I32.unpack_from(buffer, 0)[0]
                    if need > len(buffer):
                        grown = bytearray(need)
                        grown[:filled] = view[:filled]
                        buffer, view = grown, memoryview(grown)

    def _patched(self, template: _Template, buffer: bytearray, at: int) -> bytes:
        """The answer to a request of the same shape: only correlation id and base offset differ."""
        answer = template.answer
        answer[4:8] = buffer[at + 8 : at + 12]
        _I64.pack_into(answer, template.offset_at, self._next_offset)
        self._next_offset += 1
        return bytes(answer)

    def _answer(self, frame: memoryview) -> tuple[bytes, _Template | None]:
        _, api_key, version, correlation_id, client_bytes = _HEAD.unpack_from(frame)
        reader = wire.Reader(frame, _HEAD.size + max(client_bytes, 0))
        template = None
        match api_key:
            case wire.PRODUCE:
                body, template = self._produce(frame, reader, version)
                if body is None:
                    return b"", None
            case wire.METADATA:
                body = self._metadata(reader)
            case wire.API_VERSIONS:
                body = _api_versions(version)
            case wire.CREATE_TOPICS:
                body = _create_topics(reader)
            case wire.INIT_PRODUCER_ID:
                body = struct.pack(">ihqh", 0, 0, 1, 0)
            case _:
                raise ValueError(f"the sink does not speak API {api_key}")
        answer = _I32.pack(len(body) + 4) + _I32.pack(correlation_id) + body
        if template:
            template.answer[:] = answer
        return answer, template

    def _produce(
        self, frame: memoryview, reader: wire.Reader, version: int
    ) -> tuple[bytes | None, _Template | None]:
        reader.string()
        acks = reader.i16()
        reader.i32()
        body = bytearray()
        template = None
        topics = reader.i32()
        body += _I32.pack(topics)
        for _ in range(topics):
            name = reader.string()
            partitions = reader.i32()
            body += wire.string(name) + _I32.pack(partitions)
            for _ in range(partitions):
                partition, size, records_at = reader.i32(), reader.i32(), reader.at
                count = _I32.unpack_from(frame, records_at + HEADER_BYTES - 4)[0]
                offset_at = 8 + len(body) + 6
                body += struct.pack(">ihqq", partition, 0, self._next_offset, -1)
                body += _I64.pack(0) if version >= 5 else b""
                body += _I32.pack(0) + wire.string(None) if version >= 8 else b""
                self._next_offset += count
                reader.skip(size)
                if topics == partitions == 1 and acks:
                    # The records' own length is left out of the key.
                    key = bytes(frame[12 : records_at - 4])
                    template = _Template(key, bytearray(), offset_at, records_at - 4)
        return (bytes(body + _I32.pack(0)) if acks else None), template

    def _metadata(self, reader: wire.Reader) -> bytes:
        names = [reader.string() or b"" for _ in range(max(reader.i32(), 0))]
        body = struct.pack(">iii", 0, 1, 1) + wire.string(b"127.0.0.1")
        body += _I32.pack(self.port) + wire.string(None) + wire.string(b"sink") + _I32.pack(1)
        body += _I32.pack(len(names))
        for name in names:
            body += struct.pack(">h", 0) + wire.string(name) + b"\0" + _I32.pack(self._partitions)
            for partition in range(self._partitions):
                body += struct.pack(">hiiiiii", 0, partition, 1, 1, 1, 1, 1)
        return body


def _api_versions(version: int) -> bytes:
    supported = version <= 2
    body = struct.pack(">hi", 0 if supported else _UNSUPPORTED_VERSION, len(_APIS))
    body += b"".join(struct.pack(">hhh", *api) for api in _APIS)
    return body + (_I32.pack(0) if supported and version >= 1 else b"")


def _create_topics(reader: wire.Reader) -> bytes:
    reader.i32()
    return _I32.pack(0) + _I32.pack(1) + wire.string(reader.string()) + b"\0\0" + wire.string(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--partitions", type=int, default=4)
    options = parser.parse_args()
    sink = Sink(options.port, options.partitions)
    print(f"sink 127.0.0.1:{sink.port}", flush=True)
    sink.serve()


if __name__ == "__main__":
    main()
