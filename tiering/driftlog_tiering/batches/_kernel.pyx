# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=True
"""What is done per batch on the hot path, and per record when a segment is sealed or read.

`kernel_py` is the same in Python and says what each function promises; tests hold
the two to each other.  Whatever loops over records runs without the GIL.  `check` and
`patch` keep it: they run on the event loop, which would have to wait for worker threads
to give it back, and a batch of 1 MiB is checked in 50 us.

Every length is checked against the bytes that are there, in both passes: the input is
what anybody sent, and a buffer may change between scan and decode.

Pure.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from driftlog_tiering.batches.batch import CorruptRecordsError

cdef extern from "_crc32c.h" nogil:
    void driftlog_crc32c_init()
    uint32_t driftlog_crc32c(uint32_t crc, const uint8_t *p, size_t n)

cdef extern from *:
    """
    #define DRIFTLOG_MAX_TIMESTAMP_MS INT64_C(9223372036854775)
    """
    const int64_t MAX_TIMESTAMP_MS "DRIFTLOG_MAX_TIMESTAMP_MS"
    const int64_t INT64_MAX_ "INT64_MAX"
    const int32_t INT32_MAX_ "INT32_MAX"

cdef enum:
    HEADER_BYTES = 61
    SIZES = 9
    COLUMNS = 16

# The batch reasons of `batch.Reason`.
cdef enum:
    LENGTH = 1
    MAGIC = 2
    CRC = 3
    COUNT = 4
    CODEC = 5
    NEGATIVE = 6
    TIMESTAMP = 7
    CONTROL = 8
    BASE_OFFSET = 9
    OFFSET_OVERFLOW = 10

# Why records are refused.
cdef enum:
    OK = 0
    BAD_VARINT = 1
    PAST_THE_END = 2
    TRAILING = 3
    BAD_OFFSET = 4
    BAD_TIMESTAMP = 5
    BAD_HEADER_KEY = 6
    CHANGED = 7

cdef tuple MESSAGES = (
    "",
    "a varint that is too long or cut off",
    "a length that is negative or past the end",
    "bytes after the last field",
    "offset deltas that do not ascend to last_offset_delta",
    "a timestamp that does not fit int64 microseconds",
    "a header key that is null or not UTF-8",
    "the records are not those that were scanned",
)

driftlog_crc32c_init()

# ── Batches ──

cdef inline uint64_t be64(const uint8_t* p) noexcept nogil:
    return ((<uint64_t>p[0] << 56) | (<uint64_t>p[1] << 48) | (<uint64_t>p[2] << 40)
            | (<uint64_t>p[3] << 32) | (<uint64_t>p[4] << 24) | (<uint64_t>p[5] << 16)
            | (<uint64_t>p[6] << 8) | <uint64_t>p[7])


cdef inline uint32_t be32(const uint8_t* p) noexcept nogil:
    return ((<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8)
            | <uint32_t>p[3])


cdef inline int16_t be16(const uint8_t* p) noexcept nogil:
    return <int16_t>((<uint32_t>p[0] << 8) | <uint32_t>p[1])


cdef int reason_to_refuse(const uint8_t* p, Py_ssize_t length, bint from_client) noexcept nogil:
    """In the order of `batch.check_batch`."""
    cdef int64_t base_offset, base_timestamp, max_timestamp, producer_id, count
    cdef int32_t last_offset_delta, record_count
    cdef int16_t attributes
    if length < HEADER_BYTES or <int64_t><int32_t>be32(p + 8) + 12 != length:
        return LENGTH
    if p[16] != 2:
        return MAGIC
    if driftlog_crc32c(0, p + 21, length - 21) != be32(p + 17):
        return CRC
    attributes = be16(p + 21)
    base_offset = <int64_t>be64(p)
    last_offset_delta = <int32_t>be32(p + 23)
    base_timestamp = <int64_t>be64(p + 27)
    max_timestamp = <int64_t>be64(p + 35)
    producer_id = <int64_t>be64(p + 43)
    record_count = <int32_t>be32(p + 57)
    count = <int64_t>last_offset_delta + 1
    if attributes & 7 > 4:
        return CODEC
    if base_offset < 0 or last_offset_delta < 0 or record_count < 0 or producer_id < -1:
        return NEGATIVE
    if producer_id >= 0:
        if be16(p + 51) < 0 or (<int32_t>be32(p + 53) < 0 and not attributes & 0x20):
            return NEGATIVE
    if record_count > count or (from_client and record_count != count):
        return COUNT
    if base_offset > INT64_MAX_ - count:
        return OFFSET_OVERFLOW
    if base_timestamp > MAX_TIMESTAMP_MS or base_timestamp < -MAX_TIMESTAMP_MS:
        return TIMESTAMP
    if max_timestamp > MAX_TIMESTAMP_MS or max_timestamp < -MAX_TIMESTAMP_MS:
        return TIMESTAMP
    if from_client and attributes & 0x20:
        return CONTROL
    if from_client and base_offset:
        return BASE_OFFSET
    return OK


def check(buffer, Py_ssize_t pos, Py_ssize_t length, bint from_client=True):
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef int reason
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if pos < 0 or length < 0 or pos > view.len - length:
            return LENGTH
        p = <const uint8_t*>view.buf + pos
        reason = reason_to_refuse(p, length, from_client)
        if reason:
            return reason
        return (<int32_t>be32(p + 57), be16(p + 21), <int64_t>be64(p + 43), be16(p + 51),
                <int32_t>be32(p + 53), <int64_t>be64(p + 27), <int64_t>be64(p + 35))
    finally:
        PyBuffer_Release(&view)


def patch(buffer, Py_ssize_t pos, int64_t base_offset, int32_t leader_epoch):
    cdef Py_buffer view
    cdef uint8_t* p
    cdef int i
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if pos < 0 or pos > view.len - HEADER_BYTES:
            raise IndexError("no batch header at that position")
        p = <uint8_t*>view.buf + pos
        for i in range(8):
            p[i] = <uint8_t>(<uint64_t>base_offset >> (56 - 8 * i))
        for i in range(4):
            p[12 + i] = <uint8_t>(<uint32_t>leader_epoch >> (24 - 8 * i))
    finally:
        PyBuffer_Release(&view)


def crc32c(buffer, uint32_t value=0):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len < 65536:
            return driftlog_crc32c(value, <const uint8_t*>view.buf, view.len)
        with nogil:
            value = driftlog_crc32c(value, <const uint8_t*>view.buf, view.len)
        return value
    finally:
        PyBuffer_Release(&view)


# ── One record ──

cdef struct Record:
    int64_t timestamp_delta
    int32_t offset_delta
    int32_t key_length
    int32_t value_length
    int32_t header_count
    const uint8_t* key
    const uint8_t* value
    const uint8_t* headers
    const uint8_t* end


cdef inline const uint8_t* read_varint(
    const uint8_t* p, const uint8_t* end, int32_t* out
) noexcept nogil:
    """Zigzag; NULL where it is cut off or does not fit 32 bits."""
    cdef uint32_t value, byte
    cdef int shift = 7
    if p >= end:
        return NULL
    value = p[0]
    p += 1
    if value >= 0x80:
        value &= 0x7F
        while True:
            if p >= end:
                return NULL
            byte = p[0]
            p += 1
            if shift == 28 and byte > 0x0F:
                return NULL
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
    out[0] = <int32_t>((value >> 1) ^ (0 - (value & 1)))
    return p


cdef inline const uint8_t* read_varlong(
    const uint8_t* p, const uint8_t* end, int64_t* out
) noexcept nogil:
    cdef uint64_t value = 0, byte
    cdef int shift = 0
    while True:
        if p >= end:
            return NULL
        byte = p[0]
        p += 1
        if shift == 63 and byte > 1:
            return NULL
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    out[0] = <int64_t>((value >> 1) ^ (0 - (value & 1)))
    return p


cdef inline int next_record(const uint8_t** at, const uint8_t* limit, Record* r) noexcept nogil:
    """Everything up to the headers.  Source: DefaultRecord#readFrom."""
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef int32_t length
    p = read_varint(at[0], limit, &length)
    if p == NULL:
        return BAD_VARINT
    if length < 1 or length > limit - p:
        return PAST_THE_END
    end = p + length
    p = read_varlong(p + 1, end, &r.timestamp_delta)
    if p == NULL:
        return BAD_VARINT
    p = read_varint(p, end, &r.offset_delta)
    if p == NULL:
        return BAD_VARINT
    p = read_varint(p, end, &r.key_length)
    if p == NULL:
        return BAD_VARINT
    if r.key_length < -1 or r.key_length > end - p:
        return PAST_THE_END
    r.key = p
    if r.key_length > 0:
        p += r.key_length
    p = read_varint(p, end, &r.value_length)
    if p == NULL:
        return BAD_VARINT
    if r.value_length < -1 or r.value_length > end - p:
        return PAST_THE_END
    r.value = p
    if r.value_length > 0:
        p += r.value_length
    p = read_varint(p, end, &r.header_count)
    if p == NULL:
        return BAD_VARINT
    if r.header_count < 0:
        return PAST_THE_END
    if r.header_count == 0 and p != end:
        return TRAILING
    r.headers = p
    r.end = end
    at[0] = end
    return OK


cdef struct Header:
    int32_t key_length
    int32_t value_length
    const uint8_t* key
    const uint8_t* value


cdef inline int next_header(const uint8_t** at, const uint8_t* end, Header* h) noexcept nogil:
    cdef const uint8_t* p = read_varint(at[0], end, &h.key_length)
    if p == NULL:
        return BAD_VARINT
    if h.key_length < 0:
        return BAD_HEADER_KEY
    if h.key_length > end - p:
        return PAST_THE_END
    h.key = p
    p = read_varint(p + h.key_length, end, &h.value_length)
    if p == NULL:
        return BAD_VARINT
    if h.value_length < -1 or h.value_length > end - p:
        return PAST_THE_END
    h.value = p
    at[0] = p + h.value_length if h.value_length > 0 else p
    return OK


cdef bint is_utf8(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef const uint8_t* end = p + n
    cdef uint8_t lead, low, high
    cdef int more
    while p < end:
        lead = p[0]
        p += 1
        if lead < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - p < more or p[0] < low or p[0] > high:
            return False
        p += 1
        more -= 1
        while more:
            if p[0] & 0xC0 != 0x80:
                return False
            p += 1
            more -= 1
    return True


cdef inline int timestamp_of(int64_t base, int64_t delta, int64_t* out) noexcept nogil:
    """The sum, within what fits microseconds; *base* is any int64."""
    if delta > 0 and base > MAX_TIMESTAMP_MS - delta:
        return BAD_TIMESTAMP
    if delta < 0 and base < -MAX_TIMESTAMP_MS - delta:
        return BAD_TIMESTAMP
    out[0] = base + delta
    if out[0] > MAX_TIMESTAMP_MS or out[0] < -MAX_TIMESTAMP_MS:
        return BAD_TIMESTAMP
    return OK


# ── Records to columns ──

cdef int scan_records(
    const uint8_t* p, Py_ssize_t size, int64_t count, int64_t last_offset_delta,
    int64_t base_timestamp, bint log_append_time, int64_t* sizes,
) noexcept nogil:
    cdef const uint8_t* end = p + size
    cdef const uint8_t* at
    cdef Record r
    cdef Header h
    cdef int64_t i, previous = -1, timestamp
    cdef int32_t j
    cdef int error
    for i in range(count):
        error = next_record(&p, end, &r)
        if error:
            return error
        if r.offset_delta <= previous or r.offset_delta > last_offset_delta:
            return BAD_OFFSET
        previous = r.offset_delta
        if not log_append_time:
            error = timestamp_of(base_timestamp, r.timestamp_delta, &timestamp)
            if error:
                return error
        if r.key_length < 0:
            sizes[5] += 1
        else:
            sizes[0] += r.key_length
        if r.value_length < 0:
            sizes[6] += 1
        else:
            sizes[1] += r.value_length
        if r.header_count == 0:
            sizes[7] += 1
            continue
        at = r.headers
        for j in range(r.header_count):
            error = next_header(&at, r.end, &h)
            if error:
                return error
            if not is_utf8(h.key, h.key_length):
                return BAD_HEADER_KEY
            sizes[3] += h.key_length
            if h.value_length < 0:
                sizes[8] += 1
            else:
                sizes[4] += h.value_length
        sizes[2] += r.header_count
        if at != r.end:
            return TRAILING
    return OK if p == end else TRAILING


def scan(
    records, int64_t count, int64_t last_offset_delta, int64_t base_timestamp,
    bint log_append_time=False,
):
    cdef Py_buffer view
    cdef int64_t s[SIZES]
    cdef int error
    if count < 0:
        raise CorruptRecordsError(MESSAGES[PAST_THE_END])
    memset(s, 0, sizeof(s))
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            error = scan_records(<const uint8_t*>view.buf, view.len, count, last_offset_delta,
                                 base_timestamp, log_append_time, s)
    finally:
        PyBuffer_Release(&view)
    if error:
        raise CorruptRecordsError(MESSAGES[error])
    return s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]


cdef class Buffers:
    """Holds sixteen buffers, in the order of `kernel_py.decode`; None is NULL."""

    cdef Py_buffer views[COLUMNS]
    cdef int held

    def __cinit__(self, buffers, bint writable):
        cdef int i = 0
        self.held = 0
        if len(buffers) != COLUMNS:
            raise ValueError("sixteen buffers, please")
        for buffer in buffers:
            if buffer is None:
                memset(&self.views[i], 0, sizeof(Py_buffer))
            else:
                PyObject_GetBuffer(
                    buffer, &self.views[i], PyBUF_WRITABLE if writable else PyBUF_SIMPLE
                )
            i += 1
            self.held = i

    def __dealloc__(self):
        cdef int i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])

    cdef void* of(self, int column, int64_t least) except? NULL:
        """The buffer's address; ValueError if it has fewer than *least* bytes."""
        if self.views[column].buf == NULL:
            if least == 0:
                return NULL
            raise ValueError(f"buffer {column} is missing")
        if self.views[column].len < least:
            raise ValueError(f"buffer {column} has {self.views[column].len} of {least} bytes")
        return self.views[column].buf


cdef struct Binary:
    uint8_t* validity
    int32_t* offsets
    uint8_t* data
    int64_t capacity
    int64_t used
    int64_t rows


cdef struct Out:
    int64_t* offset
    int64_t* timestamp
    int32_t* timestamp_type
    Binary key
    Binary value
    uint8_t* headers_validity
    int32_t* headers_offsets
    Binary header_key
    Binary header_value
    int64_t rows
    int64_t header_capacity


cdef inline void clear_bit(uint8_t* bits, int64_t i) noexcept nogil:
    bits[i >> 3] &= <uint8_t>~(1 << (i & 7))


cdef inline int put(Binary* column, const uint8_t* p, int32_t length) noexcept nogil:
    if length < 0:
        clear_bit(column.validity, column.rows)
    elif length:
        if length > column.capacity - column.used:
            return CHANGED
        memcpy(column.data + column.used, p, length)
        column.used += length
    column.rows += 1
    column.offsets[column.rows] = <int32_t>column.used
    return OK


cdef int decode_records(
    const uint8_t* p, Py_ssize_t size, int64_t count, int64_t base_offset,
    int64_t base_timestamp, int64_t max_timestamp, int32_t timestamp_type, Out* out,
) noexcept nogil:
    cdef const uint8_t* end = p + size
    cdef const uint8_t* at
    cdef Record r
    cdef Header h
    cdef int64_t i, row, timestamp
    cdef int32_t j
    cdef int error
    for i in range(count):
        error = next_record(&p, end, &r)
        if error:
            return error
        timestamp = max_timestamp
        if timestamp_type == 0:
            error = timestamp_of(base_timestamp, r.timestamp_delta, &timestamp)
            if error:
                return error
        row = out.rows
        out.offset[row] = base_offset + r.offset_delta
        out.timestamp[row] = timestamp * 1000
        out.timestamp_type[row] = timestamp_type
        if put(&out.key, r.key, r.key_length) or put(&out.value, r.value, r.value_length):
            return CHANGED
        if r.header_count == 0:
            clear_bit(out.headers_validity, row)
        elif r.header_count > out.header_capacity - out.header_key.rows:
            return CHANGED
        at = r.headers
        for j in range(r.header_count):
            error = next_header(&at, r.end, &h)
            if error:
                return error
            if (put(&out.header_key, h.key, h.key_length)
                    or put(&out.header_value, h.value, h.value_length)):
                return CHANGED
        out.rows = row + 1
        out.headers_offsets[row + 1] = <int32_t>out.header_key.rows
    return OK


cdef int open_binary(Binary* b, Buffers buffers, int validity, int first, int64_t rows,
                     int64_t capacity) except -1:
    b.offsets = <int32_t*>buffers.of(first, 4 * (rows + 1))
    b.data = <uint8_t*>buffers.of(first + 1, capacity)
    b.validity = NULL
    if validity >= 0:
        b.validity = <uint8_t*>buffers.of(validity, (rows + 7) // 8)
        if rows:
            memset(b.validity, 0xFF, (rows + 7) // 8)
    b.capacity = capacity
    b.used = 0
    b.rows = 0
    b.offsets[0] = 0
    return 0


def decode(batches, sizes, buffers):
    cdef Out out
    cdef Py_buffer view
    cdef int64_t rows = 0, count, last_offset_delta, base_offset, base_timestamp, max_timestamp
    cdef int32_t timestamp_type
    cdef int64_t s[SIZES]
    cdef int error, i
    for i in range(SIZES):
        s[i] = sizes[i]
        if s[i] < 0:
            raise ValueError("a negative size")
    if max(s[0], s[1], s[2], s[3], s[4]) > INT32_MAX_:
        raise OverflowError("a column over 2 GiB")
    for batch in batches:
        count = batch[1]
        if count < 0:
            raise ValueError("a negative count")
        rows += count
    if rows > INT32_MAX_:
        raise OverflowError("over 2^31 rows")
    held = Buffers(buffers, True)
    out.offset = <int64_t*>held.of(0, 8 * rows)
    out.timestamp = <int64_t*>held.of(1, 8 * rows)
    out.timestamp_type = <int32_t*>held.of(2, 4 * rows)
    open_binary(&out.key, held, 3, 4, rows, s[0])
    open_binary(&out.value, held, 6, 7, rows, s[1])
    out.headers_validity = <uint8_t*>held.of(9, (rows + 7) // 8)
    if rows:
        memset(out.headers_validity, 0xFF, (rows + 7) // 8)
    out.headers_offsets = <int32_t*>held.of(10, 4 * (rows + 1))
    out.headers_offsets[0] = 0
    open_binary(&out.header_key, held, -1, 11, s[2], s[3])
    open_binary(&out.header_value, held, 13, 14, s[2], s[4])
    out.rows = 0
    out.header_capacity = s[2]
    for records, n, base, base_ts, max_ts, kind in batches:
        count, base_offset, base_timestamp, max_timestamp, timestamp_type = (
            n, base, base_ts, max_ts, kind)
        if timestamp_type and not -MAX_TIMESTAMP_MS <= max_timestamp <= MAX_TIMESTAMP_MS:
            raise CorruptRecordsError(MESSAGES[BAD_TIMESTAMP])
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                error = decode_records(
                    <const uint8_t*>view.buf, view.len, count, base_offset, base_timestamp,
                    max_timestamp, timestamp_type, &out)
        finally:
            PyBuffer_Release(&view)
        if error:
            raise CorruptRecordsError(MESSAGES[error])
    if (out.key.used, out.value.used, out.header_key.rows, out.header_key.used,
            out.header_value.used) != (s[0], s[1], s[2], s[3], s[4]):
        raise CorruptRecordsError(MESSAGES[CHANGED])


# ── Timestamps within a batch ──

def find_timestamp(
    records, int64_t count, int64_t base_timestamp, int64_t target, int64_t from_delta=0
):
    cdef Py_buffer view
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef Record r
    cdef int64_t i, timestamp, best = 0, offset_delta = 0
    cdef int error = OK
    cdef bint found = False
    if count < 0:
        raise CorruptRecordsError(MESSAGES[PAST_THE_END])
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            p = <const uint8_t*>view.buf
            end = p + view.len
            for i in range(count):
                error = next_record(&p, end, &r)
                if error:
                    break
                error = timestamp_of(base_timestamp, r.timestamp_delta, &timestamp)
                if error:
                    break
                if r.offset_delta >= from_delta and (not found or timestamp > best):
                    found = True
                    best = timestamp
                    offset_delta = r.offset_delta
                    if timestamp >= target:
                        break
            else:
                if p != end:
                    error = TRAILING
    finally:
        PyBuffer_Release(&view)
    if error:
        raise CorruptRecordsError(MESSAGES[error])
    return (offset_delta, best) if found else None


def max_timestamp(records, int64_t count, int64_t base_timestamp):
    found = find_timestamp(records, count, base_timestamp, INT64_MAX_)
    return -1 if found is None else found[1]


# ── Columns to records ──

cdef inline int varint_bytes(uint64_t value) noexcept nogil:
    cdef int n = 1
    while value >= 0x80:
        value >>= 7
        n += 1
    return n


cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ (<uint64_t>(value >> 63))


cdef inline uint8_t* write_varint(uint8_t* p, uint64_t value) noexcept nogil:
    while value >= 0x80:
        p[0] = <uint8_t>(value | 0x80)
        p += 1
        value >>= 7
    p[0] = <uint8_t>value
    return p + 1


cdef inline bint is_set(const uint8_t* bits, int64_t i) noexcept nogil:
    return bits == NULL or (bits[i >> 3] >> (i & 7)) & 1


cdef inline int64_t length_of(Binary* column, int64_t i) noexcept nogil:
    if not is_set(column.validity, i):
        return -1
    return column.offsets[i + 1] - column.offsets[i]


cdef inline int64_t bytes_of(int64_t length) noexcept nogil:
    """Of a nullable byte string, its length included."""
    return varint_bytes(zigzag(length)) + (length if length > 0 else 0)


cdef inline uint8_t* write_bytes(uint8_t* p, Binary* column, int64_t i) noexcept nogil:
    cdef int64_t length = length_of(column, i)
    p = write_varint(p, zigzag(length))
    if length > 0:
        memcpy(p, column.data + column.offsets[i], length)
        p += length
    return p


cdef inline int64_t to_ms(int64_t us) noexcept nogil:
    """Rounded down, like Spark's and Java's floorDiv."""
    return us // 1000 - (1 if us % 1000 < 0 else 0)


cdef int ascending(const int32_t* offsets, int64_t rows, int64_t capacity) noexcept nogil:
    cdef int64_t i
    if offsets[0] < 0 or offsets[rows] > capacity:
        return 0
    for i in range(rows):
        if offsets[i] > offsets[i + 1]:
            return 0
    return 1


cdef class Rows:
    """Columns to be read as records; the buffers are held, not copied."""

    cdef Buffers buffers
    cdef Out c
    cdef readonly int64_t count

    def __init__(self, int64_t count, buffers):
        cdef Buffers b
        cdef int64_t headers
        cdef bint good
        if count < 0:
            raise ValueError("a negative count")
        b = self.buffers = Buffers(buffers, False)
        self.count = count
        self.c.offset = <int64_t*>b.of(0, 8 * count)
        self.c.timestamp = <int64_t*>b.of(1, 8 * count)
        self.c.timestamp_type = <int32_t*>b.of(2, 4 * count)
        with nogil:
            good = self.are_in_order()
        if not good:
            raise ValueError("offsets that do not ascend, or a timestamp type that is none")
        self.open(&self.c.key, 3, 4, count)
        self.open(&self.c.value, 6, 7, count)
        self.c.headers_validity = self.bits(9, count)
        self.c.headers_offsets = <int32_t*>b.of(10, 4 * (count + 1))
        headers = self.c.headers_offsets[count]
        with nogil:
            good = ascending(self.c.headers_offsets, count, INT32_MAX_)
        if not good:
            raise ValueError("offsets that do not ascend")
        self.open(&self.c.header_key, -1, 11, headers)
        self.open(&self.c.header_value, 13, 14, headers)

    cdef bint are_in_order(self) noexcept nogil:
        cdef int64_t i, previous = -1
        for i in range(self.count):
            if self.c.offset[i] <= previous or self.c.timestamp_type[i] & ~1:
                return False
            previous = self.c.offset[i]
        return True

    cdef uint8_t* bits(self, int column, int64_t rows) except? NULL:
        if self.buffers.views[column].buf == NULL:
            return NULL
        return <uint8_t*>self.buffers.of(column, (rows + 7) // 8)

    cdef int open(self, Binary* b, int validity, int first, int64_t rows) except -1:
        cdef bint good
        b.validity = self.bits(validity, rows) if validity >= 0 else NULL
        b.offsets = <int32_t*>self.buffers.of(first, 4 * (rows + 1))
        b.data = <uint8_t*>self.buffers.views[first + 1].buf
        b.capacity = self.buffers.views[first + 1].len
        with nogil:
            good = ascending(b.offsets, rows, b.capacity)
        if not good:
            raise ValueError("offsets that do not ascend")
        return 0

    cdef int64_t body_bytes(
        self, int64_t i, int64_t base_offset, int64_t base_timestamp
    ) noexcept nogil:
        cdef int64_t j, first = 0, last = 0, n
        n = 1 + varint_bytes(zigzag(to_ms(self.c.timestamp[i]) - base_timestamp))
        n += varint_bytes(zigzag(self.c.offset[i] - base_offset))
        n += bytes_of(length_of(&self.c.key, i)) + bytes_of(length_of(&self.c.value, i))
        if is_set(self.c.headers_validity, i):
            first = self.c.headers_offsets[i]
            last = self.c.headers_offsets[i + 1]
        n += varint_bytes(zigzag(last - first))
        for j in range(first, last):
            n += bytes_of(length_of(&self.c.header_key, j))
            n += bytes_of(length_of(&self.c.header_value, j))
        return n

    def find_offset(self, int64_t offset):
        cdef int64_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.c.offset[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def offset(self, int64_t row):
        if not 0 <= row < self.count:
            raise IndexError("no such row")
        return self.c.offset[row]

    def cut(self, int64_t start, int64_t stop, int64_t base_offset, int64_t target_bytes):
        cdef int64_t i, n, total = 0, base_timestamp, timestamp, greatest
        cdef int32_t kind
        if not 0 <= start < stop <= self.count:
            raise IndexError("no such rows")
        base_timestamp = greatest = to_ms(self.c.timestamp[start])
        kind = self.c.timestamp_type[start]
        with nogil:
            i = start
            while i < stop:
                timestamp = to_ms(self.c.timestamp[i])
                if self.c.timestamp_type[i] != kind or (kind and timestamp != base_timestamp):
                    break
                if self.c.offset[i] - base_offset > INT32_MAX_ or self.c.offset[i] < base_offset:
                    break
                n = self.body_bytes(i, base_offset, base_timestamp)
                n += varint_bytes(zigzag(n))
                if i > start and total + n > target_bytes:
                    break
                total += n
                if timestamp > greatest:
                    greatest = timestamp
                i += 1
        if i == start or total > INT32_MAX_ - HEADER_BYTES:
            raise OverflowError("a record that fits no batch")
        return i, total, base_timestamp, greatest, kind

    def encode(self, int64_t start, int64_t stop, int64_t base_offset, out, int64_t at):
        cdef Py_buffer view
        cdef uint8_t* p
        cdef uint8_t* limit
        cdef int64_t i, j, n, base_timestamp, first, last
        cdef bint fits = True
        if not 0 <= start < stop <= self.count:
            raise IndexError("no such rows")
        base_timestamp = to_ms(self.c.timestamp[start])
        PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
        try:
            if not 0 <= at <= view.len:
                raise IndexError("no such position")
            p = <uint8_t*>view.buf + at
            limit = <uint8_t*>view.buf + view.len
            with nogil:
                for i in range(start, stop):
                    n = self.body_bytes(i, base_offset, base_timestamp)
                    if n + varint_bytes(zigzag(n)) > limit - p:
                        fits = False
                        break
                    p = write_varint(p, zigzag(n))
                    p[0] = 0
                    p = write_varint(
                        p + 1, zigzag(to_ms(self.c.timestamp[i]) - base_timestamp))
                    p = write_varint(p, zigzag(self.c.offset[i] - base_offset))
                    p = write_bytes(p, &self.c.key, i)
                    p = write_bytes(p, &self.c.value, i)
                    first = last = 0
                    if is_set(self.c.headers_validity, i):
                        first = self.c.headers_offsets[i]
                        last = self.c.headers_offsets[i + 1]
                    p = write_varint(p, zigzag(last - first))
                    for j in range(first, last):
                        p = write_bytes(p, &self.c.header_key, j)
                        p = write_bytes(p, &self.c.header_value, j)
            if not fits:
                raise ValueError("the records do not fit")
            return p - <uint8_t*>view.buf
        finally:
            PyBuffer_Release(&view)


# ── Compaction ──

include "_key_map.pxi"
