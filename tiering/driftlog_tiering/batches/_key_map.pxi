# The newest offset of each key: part of `_kernel.pyx`; `kernel_py.KeyMap` says what it promises.
#
# Slots of 24 bytes, linear probing: the 128 bits of a keyed hash (SipHash-2-4), and the offset + 1;
# 0 is an empty slot.  A producer that does not know the seed cannot find two keys of one hash.
# Source: org.apache.kafka.storage.internals.log.SkimpyOffsetMap (MD5, slots of 24 bytes).

cdef inline uint64_t le64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>p[0] | (<uint64_t>p[1] << 8) | (<uint64_t>p[2] << 16)
            | (<uint64_t>p[3] << 24) | (<uint64_t>p[4] << 32) | (<uint64_t>p[5] << 40)
            | (<uint64_t>p[6] << 48) | (<uint64_t>p[7] << 56))


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return (value << bits) | (value >> (64 - bits))


cdef inline void sip_rounds(uint64_t* v, int rounds) noexcept nogil:
    cdef int i
    for i in range(rounds):
        v[0] += v[1]
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] += v[3]
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] += v[3]
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] += v[1]
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)


cdef void siphash(
    const uint64_t* seed, const uint8_t* data, int64_t length, uint64_t* out
) noexcept nogil:
    """SipHash-2-4 with an output of 128 bits."""
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef int64_t i, whole = length & ~<int64_t>7
    v[0] = seed[0] ^ <uint64_t>0x736F6D6570736575
    v[1] = seed[1] ^ <uint64_t>0x646F72616E646F6D ^ <uint64_t>0xEE
    v[2] = seed[0] ^ <uint64_t>0x6C7967656E657261
    v[3] = seed[1] ^ <uint64_t>0x7465646279746573
    i = 0
    while i < whole:
        word = le64(data + i)
        v[3] ^= word
        sip_rounds(v, 2)
        v[0] ^= word
        i += 8
    word = <uint64_t>(length & 0xFF) << 56
    while i < length:
        word |= <uint64_t>data[i] << (8 * (i - whole))
        i += 1
    v[3] ^= word
    sip_rounds(v, 2)
    v[0] ^= word
    v[2] ^= <uint64_t>0xEE
    sip_rounds(v, 4)
    out[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= <uint64_t>0xDD
    sip_rounds(v, 4)
    out[1] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef class KeyRows:
    """Offset, key, and whether there is a value, of rows; the buffers are held, not copied."""

    cdef Buffers buffers
    cdef readonly int64_t count
    cdef int64_t* offset
    cdef Binary key
    cdef uint8_t* value_validity

    def __init__(self, int64_t count, buffers):
        cdef int64_t i, previous = -1
        cdef Buffers b
        cdef bint good = True
        if count < 0 or len(buffers) != 5:
            raise ValueError("five buffers of rows, please")
        b = self.buffers = Buffers([*buffers, *[None] * (COLUMNS - 5)], False)
        self.count = count
        self.offset = <int64_t*>b.of(0, 8 * count)
        self.key.validity = NULL
        self.value_validity = NULL
        if b.views[1].buf != NULL:
            self.key.validity = <uint8_t*>b.of(1, (count + 7) // 8)
        if b.views[4].buf != NULL:
            self.value_validity = <uint8_t*>b.of(4, (count + 7) // 8)
        self.key.offsets = <int32_t*>b.of(2, 4 * (count + 1))
        self.key.data = <uint8_t*>b.views[3].buf
        self.key.capacity = b.views[3].len
        with nogil:
            good = ascending(self.key.offsets, count, self.key.capacity)
            for i in range(count):
                if self.offset[i] <= previous:
                    good = False
                previous = self.offset[i]
        if not good:
            raise ValueError("offsets that do not ascend")


cdef struct KeySlot:
    uint64_t first
    uint64_t second
    int64_t offset_plus_1


cdef class KeyMap:
    """The newest offset of each key, in memory of a fixed size."""

    cdef KeySlot* slots
    cdef int64_t slot_count
    cdef readonly int64_t capacity
    cdef readonly int64_t keys
    cdef uint64_t[2] seed

    def __cinit__(self, int64_t memory_bytes, double load, bytes seed):
        self.slots = NULL
        if len(seed) != 16 or memory_bytes < 2 * <int64_t>sizeof(KeySlot) or not 0 < load < 1:
            raise ValueError("a seed of 16 bytes, memory of 2 slots, a load below 1")
        self.seed[0] = le64(<const uint8_t*>seed)
        self.seed[1] = le64(<const uint8_t*>seed + 8)
        self.slot_count = memory_bytes // <int64_t>sizeof(KeySlot)
        self.capacity = max(1, min(<int64_t>(load * <double>self.slot_count), self.slot_count - 1))
        self.keys = 0
        self.slots = <KeySlot*>calloc(self.slot_count, sizeof(KeySlot))
        if self.slots == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.slots)

    cdef KeySlot* find(self, const uint8_t* key, int64_t length, uint64_t* hash_) noexcept nogil:
        """The key's slot, or the empty one where it belongs; *hash_* gets its hash."""
        cdef int64_t i
        siphash(self.seed, key, length, hash_)
        i = <int64_t>(hash_[0] % <uint64_t>self.slot_count)
        while self.slots[i].offset_plus_1 != 0:
            if self.slots[i].first == hash_[0] and self.slots[i].second == hash_[1]:
                break
            i += 1
            if i == self.slot_count:
                i = 0
        return &self.slots[i]

    def add(self, KeyRows rows, int64_t first, int64_t stop):
        cdef int64_t i
        cdef uint64_t[2] hash_
        cdef KeySlot* slot
        cdef Binary* key = &rows.key
        if not 0 <= first <= stop <= rows.count:
            raise IndexError("no such rows")
        with nogil:
            i = first
            while i < stop:
                if is_set(key.validity, i):
                    slot = self.find(
                        key.data + key.offsets[i], key.offsets[i + 1] - key.offsets[i], hash_)
                    if slot.offset_plus_1 == 0:
                        if self.keys == self.capacity:
                            break
                        self.keys += 1
                        slot.first = hash_[0]
                        slot.second = hash_[1]
                    if slot.offset_plus_1 < rows.offset[i] + 1:
                        slot.offset_plus_1 = rows.offset[i] + 1
                i += 1
        return i

    def survivors(self, KeyRows rows, int64_t end_offset, int64_t tombstones_end):
        cdef int64_t i, kept = 0, tombstones = 0
        cdef uint64_t[2] hash_
        cdef KeySlot* slot
        cdef Binary* key = &rows.key
        cdef uint8_t* mask
        cdef int64_t offset
        cdef bint deletes
        out = bytearray((rows.count + 7) // 8)
        mask = out
        with nogil:
            for i in range(rows.count):
                offset = rows.offset[i]
                if offset < end_offset:
                    if not is_set(key.validity, i):
                        continue
                    deletes = not is_set(rows.value_validity, i)
                    if deletes and offset < tombstones_end:
                        continue
                    slot = self.find(
                        key.data + key.offsets[i], key.offsets[i + 1] - key.offsets[i], hash_)
                    if slot.offset_plus_1 > offset + 1:
                        continue
                    if deletes:
                        tombstones += 1
                mask[i >> 3] |= <uint8_t>(1 << (i & 7))
                kept += 1
        return out, kept, tombstones

    def hash_of(self, bytes key):
        cdef uint64_t[2] hash_
        siphash(self.seed, <const uint8_t*>key, len(key), hash_)
        return hash_[0], hash_[1]
