/* keccak-256, as FIPS 202 has it but for the padding byte, which is Ethereum's 0x01.
 *
 * Up to four inputs are hashed side by side where the processor has AVX-512: its registers hold a word of each, it
 * turns them in one instruction and needs one for a step of chi, so that the four cost less than one does elsewhere.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keccak's lanes are read as they lie in memory: little-endian machines only"
#endif

enum { RATE = 136, ABREAST = 4 };

struct hashing {
    const unsigned char *data;
    size_t length;
    unsigned char digest[32];
};

#define LEFT(word, by) ((word) << (by) | (word) >> (64 - (by)))

static const uint64_t IOTA[24] = {
    0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000, 0x000000000000808b,
    0x0000000080000001, 0x8000000080008081, 0x8000000000008009, 0x000000000000008a, 0x0000000000000088,
    0x0000000080008009, 0x000000008000000a, 0x000000008000808b, 0x800000000000008b, 0x8000000000008089,
    0x8000000000008003, 0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008,
};
/* The way of one word through rho and pi: how far it is turned, and where it goes. */
static const unsigned TURN[24] = {1,  3,  6,  10, 15, 21, 28, 36, 45, 55, 2,  14,
                                  27, 41, 56, 8,  25, 43, 62, 18, 39, 61, 20, 44};
static const unsigned TARGET[24] = {10, 7,  11, 17, 18, 3, 5,  16, 8,  21, 24, 4,
                                    15, 23, 19, 13, 12, 2, 20, 14, 22, 9,  6,  1};

#define LANE uint64_t
#define PERMUTE permute
#define FEATURES
#include "permutation.h"

/* The block of `data` that begins at `from`: as it lies there, or its end, padded in `room`. */
static const unsigned char *block_of(const struct hashing *one, size_t from, unsigned char room[RATE]) {
    if (one->length - from >= RATE) return one->data + from;
    memset(room, 0, RATE);
    memcpy(room, one->data + from, one->length - from);
    room[one->length - from] = 0x01;
    room[RATE - 1] |= 0x80;
    return room;
}

static void hash_one(struct hashing *one) {
    uint64_t a[25] = {0}, word;
    unsigned char room[RATE];
    for (size_t from = 0; from <= one->length; from += RATE) {
        const unsigned char *block = block_of(one, from, room);
        for (int i = 0; i < RATE / 8; i++) {
            memcpy(&word, block + 8 * i, 8);
            a[i] ^= word;
        }
        permute(a);
    }
    memcpy(one->digest, a, 32);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(ONE_BY_ONE)
#define ABREAST_HERE __builtin_cpu_supports("avx512vl")
#define WIDE __attribute__((target("avx512vl")))

typedef uint64_t abreast __attribute__((vector_size(8 * ABREAST)));

#define LANE abreast
#define PERMUTE permute_abreast
#define FEATURES WIDE
#include "permutation.h"

WIDE static void hash_abreast(struct hashing *all, size_t count) {
    abreast a[25] = {{0}};
    unsigned char room[RATE];
    size_t longest = 0;
    for (size_t k = 0; k < count; k++) longest = all[k].length > longest ? all[k].length : longest;
    for (size_t from = 0; from <= longest; from += RATE) {
        for (size_t k = 0; k < count; k++) {
            if (from > all[k].length) continue;
            const unsigned char *block = block_of(&all[k], from, room);
            for (int i = 0; i < RATE / 8; i++) {
                uint64_t word;
                memcpy(&word, block + 8 * i, 8);
                a[i][k] ^= word;
            }
        }
        permute_abreast(a);
        for (size_t k = 0; k < count; k++) {
            if (all[k].length - from >= RATE) continue; /* it goes on, or ended before */
            for (int i = 0; i < 4; i++) memcpy(all[k].digest + 8 * i, (char *)&a[i] + 8 * k, 8);
        }
    }
}

#else
#define ABREAST_HERE 0
#define hash_abreast(all, count) ((void)(all), (void)(count))
#endif

/* Fills in the digests of all, of which there are at most ABREAST. */
static void keccak256(struct hashing *all, size_t count) {
    if (ABREAST_HERE)
        hash_abreast(all, count);
    else
        while (count--) hash_one(all++);
}
