"""Bytes of every client's compressors are decompressed; anything else is refused."""

import gzip
import io
import random
import struct
import subprocess
import sys
import threading
import tracemalloc

import cramjam
import pytest
import zstandard
from aiokafka import codec as aiokafka
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec as kafka_python

from driftlog_tiering.batches.batch import Codec, CorruptRecordsError
from driftlog_tiering.batches.batch_limits import DECOMPRESSED_BYTES, OverBatchLimitError
from driftlog_tiering.batches.compression import compress, decompress

MiB = 1024 * 1024
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
TEXT = b"a record section that repeats itself, and again: " * 5000


def zstd_stream(data: bytes) -> bytes:
    """As librdkafka writes: a frame without its content size."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as w:
        w.write(data)
    return out.getvalue()


def lz4_linked(data: bytes) -> bytes:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=True, block_linked=True)
    compressor.compress(data)
    return bytes(compressor.finish())


OTHERS = {
    "gzip of aiokafka": (Codec.GZIP, aiokafka.gzip_encode),
    "gzip in two members": (Codec.GZIP, lambda d: gzip.compress(d[:9]) + gzip.compress(d[9:])),
    "snappy of aiokafka": (Codec.SNAPPY, aiokafka.snappy_encode),
    "raw snappy": (Codec.SNAPPY, lambda d: bytes(cramjam.snappy.compress_raw(d))),
    "snappy streams joined": (
        Codec.SNAPPY,
        lambda d: aiokafka.snappy_encode(d[:9]) + aiokafka.snappy_encode(d[9:]),
    ),
    "lz4 of aiokafka": (Codec.LZ4, aiokafka.lz4_encode),
    "lz4 with linked blocks": (Codec.LZ4, lz4_linked),
    "lz4 in two frames": (Codec.LZ4, lambda d: lz4_linked(d[:9]) + lz4_linked(d[9:])),
    "zstd of aiokafka": (Codec.ZSTD, aiokafka.zstd_encode),
    "zstd of kafka-python": (Codec.ZSTD, kafka_python.zstd_encode),
    "zstd without content size": (Codec.ZSTD, zstd_stream),
    "zstd in two frames": (Codec.ZSTD, lambda d: zstd_stream(d[:9]) + zstd_stream(d[9:])),
}


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(min_size=1, max_size=300) | st.integers(1, 300_000).map(lambda n: TEXT[:n]))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes) -> None:
    """
    With a limit of exactly its size.
    """
    assert data == bytes(decompress(codec, compress(codec, data), len(data)))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("data", [b"x" * 10, TEXT, random.Random(1).randbytes(200_000)])
def test_every_writer_is_read(name: str, data: bytes) -> None:
    """
    Framings and frames as clients make them, from views as well.
    """
    codec, encode = OTHERS[name]
    view = memoryview(b"head" + encode(data))[4:]

    assert data == bytes(decompress(codec, view, MiB))


@pytest.mark.parametrize("data", [b"x", TEXT, random.Random(2).randbytes(200_000)])
def test_clients_read_what_we_write(data: bytes) -> None:
    """
    aiokafka's decoders for all, kafka-python's where its libraries are there.
    """
    assert data == aiokafka.gzip_decode(compress(Codec.GZIP, data))
    assert data == aiokafka.snappy_decode(bytes(compress(Codec.SNAPPY, data)))
    assert data == aiokafka.lz4_decode(bytes(compress(Codec.LZ4, data)))
    assert data == aiokafka.zstd_decode(bytes(compress(Codec.ZSTD, data)))
    assert data == kafka_python.gzip_decode(compress(Codec.GZIP, data))
    assert data == kafka_python.zstd_decode(bytes(compress(Codec.ZSTD, data)))


def test_our_lz4_blocks_are_independent() -> None:
    """
    Java's Lz4BlockInputStream refuses linked ones: bit 5 of the frame's flags.
    """
    frame = bytes(compress(Codec.LZ4, TEXT))

    assert 0x60 == frame[4] & 0xE0


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_refused_at_the_limit(codec: Codec) -> None:
    """
    32 MiB of zeros in little: one byte over the limit is too much.
    """
    bomb = compress(codec, bytes(32 * MiB))

    for limit_bytes in (1, MiB, 32 * MiB - 1):
        with pytest.raises(CorruptRecordsError):
            decompress(codec, bomb, limit_bytes)
    assert 32 * MiB == len(decompress(codec, bomb, 32 * MiB))


@pytest.mark.parametrize("codec", COMPRESSING)
def test_what_is_over_the_limit_is_told_from_garbage(codec: Codec) -> None:
    """
    It may be decoded with more room; of zstd its frame says so before anything is made.
    """
    with pytest.raises(OverBatchLimitError) as caught:
        decompress(codec, compress(codec, bytes(3 * MiB)), MiB)

    assert DECOMPRESSED_BYTES == caught.value.limit


def test_gzip_of_very_many_members_is_read_in_one_pass() -> None:
    """
    What is behind a member is not copied whole for each of them: 20,000 in half a megabyte
    would be five gigabytes.
    """
    member = gzip.compress(b"ab")
    whole = memoryview(member * 20_000)

    assert b"ab" * 20_000 == decompress(Codec.GZIP, whole, MiB)
    with pytest.raises(CorruptRecordsError):
        decompress(Codec.GZIP, whole[:-1], MiB)
    with pytest.raises(CorruptRecordsError):
        decompress(Codec.GZIP, whole, 39_999)


@pytest.mark.parametrize("first", [b"", b"a"])
def test_zstd_behind_a_tiny_first_frame_is_read_in_large_steps(first: bytes) -> None:
    """
    A frame says its own size, and not that of the frames behind it: 1.7 KB took 6.8 GB.
    """
    frames = zstandard.compress(first) + zstandard.compress(bytes(4 * MiB))

    tracemalloc.start()
    out = decompress(Codec.ZSTD, frames, 5 * MiB)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert first + bytes(4 * MiB) == out
    assert most_bytes < 16 * MiB


def test_snappy_in_tiny_blocks_takes_no_memory_for_each() -> None:
    """
    A block of 5 bytes that gives none: 16 MiB of them took 690 MB.
    """
    empty = struct.pack(">i", 1) + b"\0"
    blocks = bytes(compress(Codec.SNAPPY, b"ab")) + empty * 20_000

    tracemalloc.start()
    out = decompress(Codec.SNAPPY, blocks, MiB)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert b"ab" == out
    assert most_bytes < 100_000


def test_an_uncompressed_section_has_the_limit_too() -> None:
    """
    One limit for all codecs.
    """
    with pytest.raises(CorruptRecordsError):
        decompress(Codec.NONE, b"four", 3)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_garbage_raises_and_nothing_else(codec: Codec) -> None:
    """
    Mutated, cut or random bytes: the typed error, or an output within the limit.
    """
    rng = random.Random(int(codec))
    sound = [bytes(compress(codec, TEXT[:n])) for n in (1, 100, 100_000)]
    sound += [OTHERS["raw snappy"][1](TEXT[:500])] if codec is Codec.SNAPPY else []
    refused = 0
    for _ in range(3000):
        data = bytearray(rng.choice(sound))
        match rng.randrange(4):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                data[:16] = rng.randbytes(rng.randint(0, 16))
            case _:
                data[rng.randrange(len(data)) :] = rng.randbytes(8)
        try:
            assert len(decompress(codec, data, 200_000)) <= 200_000
        except CorruptRecordsError:
            refused += 1

    assert refused > 1000


@pytest.mark.parametrize("codec", COMPRESSING)
def test_threads_do_not_disturb_each_other(codec: Codec) -> None:
    """
    Two threads, different data, the same module: nothing is mixed.
    """
    wrong: list[int] = []

    def work(seed: int) -> None:
        data = random.Random(seed).randbytes(2000) * 100
        for _ in range(30):
            if bytes(decompress(codec, compress(codec, data), MiB)) != data:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == wrong


def test_the_highest_level_takes_little_memory_for_a_large_batch() -> None:
    """
    zstd would take 700 MB for it, and keep them; the frame says its size, as of any other level.
    """
    program = (
        "import os, resource, zstandard\n"
        "from driftlog_tiering.batches.batch import Codec\n"
        "from driftlog_tiering.batches.compression import compress\n"
        "data = os.urandom(1 << 16) * 768\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "frame = compress(Codec.ZSTD, data, 22)\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(grown // 1024, zstandard.get_frame_parameters(frame).content_size == len(data))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    grown_mib, said = done.stdout.split()

    assert "True" == said
    assert int(grown_mib) < 200


def test_a_thread_keeps_no_large_window() -> None:
    """
    Java at level 22 writes frames with a window of 128 MiB: they are read, and then their memory
    is free, behind a tiny first frame as well.
    """
    program = (
        "import io, zstandard\n"
        "from driftlog_tiering.batches.batch import Codec\n"
        "from driftlog_tiering.batches.compression import compress, decompress\n"
        "def resident():\n"
        "    return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "large = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)\n"
        "out = io.BytesIO()\n"
        "with zstandard.ZstdCompressor(compression_params=large).stream_writer(\n"
        "    out, closefd=False) as writer:\n"
        "    writer.write(bytes(47 << 20))\n"
        "frame, tiny = out.getvalue(), bytes(compress(Codec.ZSTD, b'x'))\n"
        "decompress(Codec.ZSTD, tiny, 1)\n"
        "before = resident()\n"
        "for body in (frame, tiny + frame):\n"
        "    print(len(decompress(Codec.ZSTD, body, 48 << 20)) - (47 << 20))\n"
        "    print((resident() - before) >> 20)\n"
        "print(zstandard.get_frame_parameters(frame).window_size >> 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    first, kept, second, kept_too, window_mib = map(int, done.stdout.split())

    assert (0, 1, 128) == (first, second, window_mib)
    assert max(kept, kept_too) < 20
