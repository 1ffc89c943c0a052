/* CRC-32C (Castagnoli), reflected polynomial 0x82F63B78.
 *
 * Three streams at once keep the CPU's crc32 instruction (latency 3, one a cycle)
 * busy; their states are joined by "append n zero bytes", a linear map of the state
 * that is tabulated per byte.  Without the instruction: eight tables, eight bytes a step.
 * x86-64 is asked at run time, ARM64 when compiling (__ARM_FEATURE_CRC32).
 */
#ifndef DRIFTLOG_CRC32C_H
#define DRIFTLOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DRIFTLOG_LONG 4096
#define DRIFTLOG_SHORT 256

static uint32_t driftlog_byte_tables[8][256];
static uint32_t driftlog_after_long[4][256];
static uint32_t driftlog_after_short[4][256];
static int driftlog_has_instruction;

static uint64_t driftlog_load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint32_t driftlog_crc32c_tables(uint32_t state, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t word = driftlog_load64(p) ^ state;
        state = driftlog_byte_tables[7][word & 255] ^
                driftlog_byte_tables[6][(word >> 8) & 255] ^
                driftlog_byte_tables[5][(word >> 16) & 255] ^
                driftlog_byte_tables[4][(word >> 24) & 255] ^
                driftlog_byte_tables[3][(word >> 32) & 255] ^
                driftlog_byte_tables[2][(word >> 40) & 255] ^
                driftlog_byte_tables[1][(word >> 48) & 255] ^
                driftlog_byte_tables[0][word >> 56];
    }
    for (; n; p++, n--)
        state = driftlog_byte_tables[0][(state ^ *p) & 255] ^ (state >> 8);
    return state;
}

static inline uint32_t driftlog_append_zeros(const uint32_t map[4][256], uint32_t state) {
    return map[0][state & 255] ^ map[1][(state >> 8) & 255] ^
           map[2][(state >> 16) & 255] ^ map[3][state >> 24];
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define DRIFTLOG_INSTRUCTION __attribute__((target("sse4.2")))
#define DRIFTLOG_STEP8(state, word) _mm_crc32_u64((state), (word))
#define DRIFTLOG_STEP1(state, byte) _mm_crc32_u8((uint32_t)(state), (byte))
static int driftlog_detect(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define DRIFTLOG_INSTRUCTION
#define DRIFTLOG_STEP8(state, word) __crc32cd((uint32_t)(state), (word))
#define DRIFTLOG_STEP1(state, byte) __crc32cb((uint32_t)(state), (byte))
static int driftlog_detect(void) { return 1; }
#endif

#ifdef DRIFTLOG_INSTRUCTION
DRIFTLOG_INSTRUCTION
static const uint8_t *driftlog_three(uint64_t *state, const uint8_t *p, const uint8_t *end,
                                     size_t width, const uint32_t map[4][256]) {
    while ((size_t)(end - p) >= 3 * width) {
        uint64_t a = *state, b = 0, c = 0;
        const uint8_t *stop = p + width;
        for (; p < stop; p += 8) {
            a = DRIFTLOG_STEP8(a, driftlog_load64(p));
            b = DRIFTLOG_STEP8(b, driftlog_load64(p + width));
            c = DRIFTLOG_STEP8(c, driftlog_load64(p + 2 * width));
        }
        b ^= driftlog_append_zeros(map, (uint32_t)a);
        *state = c ^ driftlog_append_zeros(map, (uint32_t)b);
        p += 2 * width;
    }
    return p;
}

DRIFTLOG_INSTRUCTION
static uint32_t driftlog_crc32c_instruction(uint32_t initial, const uint8_t *p, size_t n) {
    uint64_t state = initial;
    const uint8_t *end = p + n;
    p = driftlog_three(&state, p, end, DRIFTLOG_LONG, driftlog_after_long);
    p = driftlog_three(&state, p, end, DRIFTLOG_SHORT, driftlog_after_short);
    for (; end - p >= 8; p += 8)
        state = DRIFTLOG_STEP8(state, driftlog_load64(p));
    for (; p < end; p++)
        state = DRIFTLOG_STEP1(state, *p);
    return (uint32_t)state;
}
#endif

static void driftlog_fill_map(uint32_t map[4][256], size_t zeros) {
    static const uint8_t nothing[DRIFTLOG_LONG];
    uint32_t basis[32];
    for (int bit = 0; bit < 32; bit++)
        basis[bit] = driftlog_crc32c_tables((uint32_t)1 << bit, nothing, zeros);
    for (int position = 0; position < 4; position++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1) sum ^= basis[8 * position + bit];
            map[position][byte] = sum;
        }
}

static void driftlog_crc32c_init(void) {
    for (int byte = 0; byte < 256; byte++) {
        uint32_t state = (uint32_t)byte;
        for (int bit = 0; bit < 8; bit++)
            state = (state >> 1) ^ (state & 1 ? 0x82F63B78u : 0);
        driftlog_byte_tables[0][byte] = state;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t state = driftlog_byte_tables[table - 1][byte];
            driftlog_byte_tables[table][byte] =
                driftlog_byte_tables[0][state & 255] ^ (state >> 8);
        }
    driftlog_fill_map(driftlog_after_long, DRIFTLOG_LONG);
    driftlog_fill_map(driftlog_after_short, DRIFTLOG_SHORT);
#ifdef DRIFTLOG_INSTRUCTION
    driftlog_has_instruction = driftlog_detect();
#endif
}

static uint32_t driftlog_crc32c(uint32_t crc, const uint8_t *p, size_t n) {
#ifdef DRIFTLOG_INSTRUCTION
    if (driftlog_has_instruction) return ~driftlog_crc32c_instruction(~crc, p, n);
#endif
    return ~driftlog_crc32c_tables(~crc, p, n);
}

#endif
