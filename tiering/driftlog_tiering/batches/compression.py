"""Record sections, compressed and back, with a bound on what comes out.

    codec    read                                       written
    gzip     members, one after another                 one member
    snappy   raw (librdkafka, franz-go), or xerial      xerial, 32 KiB blocks, as Java does;
             blocks (Java, aiokafka, kafka-python)      every client detects it by its magic
    lz4      frames, linked or independent blocks       one frame, independent blocks (Java's
                                                        Lz4BlockInputStream refuses linked ones)
    zstd     frames, with or without a content size     one frame with its content size

xerial: ``82 53 4e 41 50 50 59 00``, version and compatible version int32 (not checked: some
clients write them little-endian), then blocks of length int32 and raw snappy.  A header may come
again where a block could, as in concatenated streams.

Everything heavy runs without the GIL.  Zstandard contexts are not safe to share (a shared one
corrupts silently): there is one per thread.
Sources: org.apache.kafka.common.record.CompressionType, snappy-java's SnappyInputStream,
lz4_Frame_format.md.

Pure.
"""

import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Final

import cramjam
import zstandard

from driftlog_tiering.batches.batch import Codec, CorruptRecordsError
from driftlog_tiering.batches.batch_limits import DECOMPRESSED_BYTES, OverBatchLimitError
from driftlog_tiering.foundation.types import Buffer

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_STEP_BYTES: Final = 512 * 1024
"""Bytes compressed by one call, which holds the GIL: a millisecond or two."""

_LZ4_LARGEST_RATIO: Final = 255
"""One byte of a block stands for at most 255 (lz4_Block_format.md: length continuation)."""

_DEFAULT_LEVELS: Final = {Codec.GZIP: 6, Codec.LZ4: 1, Codec.ZSTD: 3}
"""Kafka's ``compression.*.level`` defaults, except lz4 (9 in Kafka, which is slow)."""

_ZSTD_KEPT_BYTES: Final = 1024 * 1024
"""A larger input gets a context of its own, which is released afterwards."""

_ZSTD_KEPT_WINDOW_BYTES: Final = 8 * 1024 * 1024
"""A frame with a larger window gets a context of its own, too; all decoders should have as much
(RFC 8878, 3.1.1.1.2), and levels up to 19 need no more.  A context keeps the window of the largest
frame.  Its own limit is zstd's, and that of Kafka's clients: 128 MiB, for level 22."""

_ZSTD_LOGS: Final = {"window_log": 23, "chain_log": 23, "hash_log": 22}
"""Largest zstd tables, as binary logarithms; without them level 22 takes 700 MB for 48 MiB."""

_GZIP_STEP_BYTES: Final = 4 * 1024

_BE32: Final = struct.Struct(">i")
_LE32: Final = struct.Struct("<I")


def decompress(codec: Codec, view: Buffer, limit_bytes: int) -> Buffer:
    """The record section; of `Codec.NONE`, *view* itself.

    Raises:
        CorruptRecordsError: *view* is not of that codec.
        OverBatchLimitError: the section is larger than *limit_bytes*, or its header says so.
    """
    try:
        out = _decompress(codec, view, limit_bytes)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, struct.error) as error:
        raise CorruptRecordsError(f"{codec.name}: {error}") from None
    if len(out) > limit_bytes:
        raise _too_large(codec, limit_bytes)
    return out


def _decompress(codec: Codec, view: Buffer, limit_bytes: int) -> Buffer:
    match codec:
        case Codec.NONE:
            return view
        case Codec.GZIP:
            return _gunzip(view, limit_bytes)
        case Codec.SNAPPY:
            return _unsnappy(memoryview(view), limit_bytes)
        case Codec.LZ4:
            return _unlz4(memoryview(view), limit_bytes)
        case Codec.ZSTD:
            return _unzstd(view, limit_bytes)


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """What every Kafka client can read; of `Codec.NONE`, *data* itself.

    *level* None is the codec's default; snappy has none.
    """
    if level is None:
        level = _DEFAULT_LEVELS.get(codec, 0)
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return zlib.compress(data, level, wbits=31)
        case Codec.SNAPPY:
            return _xerial(memoryview(data))
        case Codec.LZ4:
            compressor = cramjam.lz4.Compressor(
                level=level, content_checksum=False, block_linked=False
            )
            view = memoryview(data)
            for start in range(0, len(view), _LZ4_STEP_BYTES):
                # The compressor accepts only bytes, and holds the GIL for the whole call.
                compressor.compress(bytes(view[start : start + _LZ4_STEP_BYTES]))
            return memoryview(compressor.finish())
        case Codec.ZSTD:
            return _contexts.compressor(level, len(memoryview(data))).compress(data)


def _too_large(codec: Codec, limit_bytes: int) -> OverBatchLimitError:
    return OverBatchLimitError(DECOMPRESSED_BYTES, f"{codec.name}: more than {limit_bytes} bytes")


class _Contexts(threading.local):
    """Zstandard contexts, one set per thread."""

    def __init__(self) -> None:
        self._level: int | None = None
        self._compressor: zstandard.ZstdCompressor | None = None
        """The compressor of the level used last: it keeps its tables, some MB."""
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_KEPT_WINDOW_BYTES)

    def compressor(self, level: int, size_bytes: int) -> zstandard.ZstdCompressor:
        """A compressor of *level* for *size_bytes* of input."""
        if size_bytes > _ZSTD_KEPT_BYTES:
            found = zstandard.ZstdCompressionParameters.from_level(level, source_size=size_bytes)
            logs = {name: min(getattr(found, name), most) for name, most in _ZSTD_LOGS.items()}
            return zstandard.ZstdCompressor(
                compression_params=zstandard.ZstdCompressionParameters.from_level(
                    level, source_size=size_bytes, **logs
                )
            )
        if self._compressor is None or level != self._level:
            self._level, self._compressor = level, zstandard.ZstdCompressor(level=level)
        return self._compressor


_contexts: Final = _Contexts()


def _gunzip(view: Buffer, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    data = memoryview(view)
    total = at = 0
    while at < len(data) or not parts:
        member = zlib.decompressobj(wbits=31)
        step = _GZIP_STEP_BYTES
        while not member.eof:
            if at == len(data):
                raise CorruptRecordsError("GZIP: cut off")
            # zlib copies the bytes after a member; steps start small, so small members copy little.
            taken = data[at : at + step]
            at += len(taken)
            step *= 2
            # One byte over the limit proves that the section is too large.
            part = member.decompress(taken, limit_bytes - total + 1)
            total += len(part)
            if total > limit_bytes:
                raise _too_large(Codec.GZIP, limit_bytes)
            parts.append(part)
        at -= len(member.unused_data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unzstd(view: Buffer, limit_bytes: int) -> bytes:
    try:
        return _zstd_frames(_contexts.decompressor, view, limit_bytes)
    except zstandard.ZstdError:
        pass  # damaged, or one of its frames has a large window; what was read leaves memory
    return _zstd_frames(zstandard.ZstdDecompressor(), view, limit_bytes)


def _zstd_frames(decompressor: zstandard.ZstdDecompressor, view: Buffer, limit_bytes: int) -> bytes:
    size = zstandard.frame_content_size(view)
    if size > limit_bytes:
        raise _too_large(Codec.ZSTD, limit_bytes)
    step = size + 1 if size >= 0 else 4 * len(view) + 1024
    parts: list[bytes] = []
    total = 0
    with decompressor.stream_reader(view, read_across_frames=True) as reader:
        while part := reader.read(max(1, min(step, limit_bytes + 1 - total))):
            parts.append(part)
            total += len(part)
            if total > limit_bytes:
                raise _too_large(Codec.ZSTD, limit_bytes)
            step *= 2  # the size is the first frame's, and a client may make that an empty one
    return parts[0] if len(parts) == 1 else b"".join(parts)


# ── Snappy ──


def _unsnappy(view: memoryview, limit_bytes: int) -> Buffer:
    # Blocks are found twice and never kept: one may have 5 bytes, and would cost 200 as a view.
    total = sum(map(cramjam.snappy.decompress_raw_len, _snappy_blocks(view)))
    if total > limit_bytes:
        raise _too_large(Codec.SNAPPY, limit_bytes)
    # 3 bytes of a block give 64 at most: an impossible length is refused before an allocation.
    if total > 22 * len(view) + 64:
        raise CorruptRecordsError("SNAPPY: a length that its bytes cannot give")
    out = memoryview(bytearray(total))
    position = 0
    for block in _snappy_blocks(view):
        size = cramjam.snappy.decompress_raw_len(block)
        if size:
            written = cramjam.snappy.decompress_raw_into(block, out[position : position + size])
            if written != size:
                raise CorruptRecordsError("SNAPPY: a length that is not its bytes'")
        position += size
    return out


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if bytes(view[:8]) != _XERIAL_MAGIC:
        yield view
        return
    position = 0
    while position < len(view):
        if bytes(view[position : position + 8]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        (size,) = _BE32.unpack_from(view, position)
        position += 4
        if not 0 < size <= len(view) - position:
            raise CorruptRecordsError("SNAPPY: a block that is past the end")
        yield view[position : position + size]
        position += size
    if position != len(view):
        raise CorruptRecordsError("SNAPPY: cut off")


def _xerial(view: memoryview) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_BE32.pack(len(block)), block]
    return b"".join(parts)


# ── LZ4 ──


def _unlz4(view: memoryview, limit_bytes: int) -> Buffer:
    bound = _lz4_bound(view)
    out = memoryview(bytearray(min(bound, limit_bytes)))
    if not out:
        if bound:
            raise _too_large(Codec.LZ4, limit_bytes)
        return out
    # cramjam refuses to write past the buffer, so the limit holds.
    try:
        return out[: cramjam.lz4.decompress_into(view, out)]
    except cramjam.DecompressionError:
        if bound > limit_bytes:  # an upper bound from the frame's header
            raise _too_large(Codec.LZ4, limit_bytes) from None
        raise


def _lz4_bound(view: memoryview) -> int:
    """Upper bound of the frames' content in bytes, by the sizes of their blocks."""
    bound = position = 0
    while position < len(view):
        magic, flags, descriptor = struct.unpack_from("<IBB", view, position)
        if magic != _LZ4_MAGIC:
            raise CorruptRecordsError("LZ4: no frame")
        largest = 1 << (8 + 2 * (descriptor >> 4 & 7))
        position += 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        while True:
            (size,) = _LE32.unpack_from(view, position)
            position += 4
            if size == 0:
                break
            stored, size = size >> 31, size & 0x7FFFFFFF
            bound += min(largest, size if stored else _LZ4_LARGEST_RATIO * size)
            position += size + (4 if flags & 16 else 0)
        position += 4 if flags & 4 else 0
    if position != len(view):
        raise CorruptRecordsError("LZ4: cut off")
    return bound
