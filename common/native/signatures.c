/* Who signed these structs: hashing, recovery and address of many signatures in one call. And the other way round: a
 * transaction that is hashed, signed, put together and hashed again.
 *
 * Done from Python, a check of two signatures takes the interpreter's lock a dozen times, and two threads that check
 * spend their time in handing it to each other. Here it is given back once for all of them.
 *
 * The curve itself is libsecp256k1's: its functions come in as pointers from the copy that Python has loaded, so there
 * is one copy, kept up to date as a dependency. What follows is what stands around it. `common/signatures.py` and
 * `common/transactions.py` say the same in Python, and the tests hold the two against each other.
 */

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "keccak's lanes are read as they lie in memory: little-endian machines only"
#endif

/* --- keccak-256, as FIPS 202 has it but for the padding byte, which is Ethereum's 0x01 ---------------------------- */

enum { RATE = 136 };

#define LEFT(word, by) ((word) << (by) | (word) >> (64 - (by)))

static const uint64_t IOTA[24] = {
    0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000, 0x000000000000808b,
    0x0000000080000001, 0x8000000080008081, 0x8000000000008009, 0x000000000000008a, 0x0000000000000088,
    0x0000000080008009, 0x000000008000000a, 0x000000008000808b, 0x800000000000008b, 0x8000000000008089,
    0x8000000000008003, 0x8000000000008002, 0x8000000000000080, 0x000000000000800a, 0x800000008000000a,
    0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008,
};
/* The way of one lane through rho and pi: how far it is turned, and where it goes. */
static const unsigned TURN[24] = {1,  3,  6,  10, 15, 21, 28, 36, 45, 55, 2,  14,
                                  27, 41, 56, 8,  25, 43, 62, 18, 39, 61, 20, 44};
static const unsigned LANE[24] = {10, 7,  11, 17, 18, 3, 5,  16, 8,  21, 24, 4,
                                  15, 23, 19, 13, 12, 2, 20, 14, 22, 9,  6,  1};

static void permute(uint64_t a[25]) {
    for (int round = 0; round < 24; round++) {
        uint64_t row[5], word;
#pragma GCC unroll 5
        for (int x = 0; x < 5; x++) row[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
#pragma GCC unroll 5
        for (int x = 0; x < 5; x++) {
            word = row[(x + 4) % 5] ^ LEFT(row[(x + 1) % 5], 1);
#pragma GCC unroll 5
            for (int y = 0; y < 25; y += 5) a[y + x] ^= word;
        }
        word = a[1];
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++) {
            uint64_t next = a[LANE[i]];
            a[LANE[i]] = LEFT(word, TURN[i]);
            word = next;
        }
#pragma GCC unroll 5
        for (int y = 0; y < 25; y += 5) {
            memcpy(row, a + y, sizeof row);
#pragma GCC unroll 5
            for (int x = 0; x < 5; x++) a[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
        }
        a[0] ^= IOTA[round];
    }
}

static void absorb(uint64_t a[25], const unsigned char block[RATE]) {
    for (int i = 0; i < RATE / 8; i++) {
        uint64_t word;
        memcpy(&word, block + 8 * i, 8);
        a[i] ^= word;
    }
    permute(a);
}

static void keccak256(const unsigned char *data, size_t length, unsigned char digest[32]) {
    uint64_t a[25] = {0};
    unsigned char last[RATE] = {0};
    for (; length >= RATE; data += RATE, length -= RATE) absorb(a, data);
    memcpy(last, data, length);
    last[length] = 0x01;
    last[RATE - 1] |= 0x80;
    absorb(a, last);
    memcpy(digest, a, 32);
}

/* --- signatures --------------------------------------------------------------------------------------------------- */

/* libsecp256k1's, which its header gives. Its structs are only handed from one function to the next: here they are
 * bytes, as many as the header says. */
typedef int (*parse_signature)(const void *context, void *signature, const unsigned char *compact, int parity);
typedef int (*recover_key)(const void *context, void *key, const void *signature, const unsigned char *digest);
typedef int (*serialize_key)(const void *context, unsigned char *out, size_t *length, const void *key, unsigned flags);
typedef int (*sign_digest)(const void *context, void *signature, const unsigned char *digest,
                           const unsigned char *secret, const void *nonce_function, const void *nonce_data);
typedef int (*serialize_signature)(const void *context, unsigned char *compact, int *parity, const void *signature);

struct curve {
    const void *context;
    parse_signature parse;
    recover_key recover;
    serialize_key serialize;
    sign_digest sign;
    serialize_signature serialize_compact;
    unsigned uncompressed;
};

enum { SIGNATURE = 65, PREFIX = 34, ADDRESS = 20 };

static const unsigned char HALF_ORDER[32] = {
    0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0x5d, 0x57, 0x6e, 0x73, 0x57, 0xa4, 0x50, 0x1d, 0xdf, 0xe9, 0x2f, 0x46, 0x68, 0x1b, 0x20, 0xa0,
};

static int signer(const struct curve *curve, const unsigned char *digest, const unsigned char *signature,
                  unsigned char address[ADDRESS]) {
    unsigned char parsed[65], key[64], point[65], hash[32];
    size_t length = sizeof point;
    int parity = signature[64] - 27;
    if ((parity != 0 && parity != 1) || memcmp(signature + 32, HALF_ORDER, 32) > 0) return 0;
    if (!curve->parse(curve->context, parsed, signature, parity)) return 0;
    if (!curve->recover(curve->context, key, parsed, digest)) return 0;
    curve->serialize(curve->context, point, &length, key, curve->uncompressed);
    keccak256(point + 1, 64, hash);
    memcpy(address, hash + 12, ADDRESS);
    return 1;
}

/* `items`: `count` times prefix (34) ‖ signature (65) ‖ length of the struct (4, little-endian) ‖ struct.
 * `answers`: as many times found (1) ‖ address (20). */
void signers(const struct curve *curve, size_t count, const unsigned char *items, unsigned char *answers) {
    for (; count; count--, answers += 1 + ADDRESS) {
        unsigned char message[PREFIX + 32], digest[32];
        const unsigned char *signature = items + PREFIX;
        uint32_t length;
        memcpy(&length, signature + SIGNATURE, sizeof length);
        memcpy(message, items, PREFIX);
        items = signature + SIGNATURE + sizeof length;
        keccak256(items, length, message + PREFIX);
        keccak256(message, sizeof message, digest);
        items += length;
        *answers = signer(curve, digest, signature, answers + 1);
    }
}

/* --- transactions of EIP-1559 ------------------------------------------------------------------------------------- */

/* The type and the head of an RLP list whose items have `length` bytes together. */
static unsigned char *put_head(unsigned char *out, size_t length) {
    *out++ = 0x02;
    if (length < 56) {
        *out++ = 0xc0 + (unsigned char)length;
        return out;
    }
    unsigned size = 0;
    for (size_t rest = length; rest; rest >>= 8) size++;
    *out++ = 0xf7 + size;
    while (size--) *out++ = (unsigned char)(length >> 8 * size);
    return out;
}

/* A number of 32 bytes, above zero, as RLP writes it: without leading zeros. */
static unsigned char *put_number(unsigned char *out, const unsigned char *number) {
    unsigned length = 32;
    while (!*number) number++, length--;
    if (length > 1 || *number >= 0x80) *out++ = 0x80 + length;
    memcpy(out, number, length);
    return out + length;
}

/* `fields`: the items of the unsigned transaction. `answer`, of at least 32 + 10 + length + 67 bytes: the transaction's
 * hash (32) ‖ the signed transaction. The answer's length, or 0 for a secret that is no key. */
size_t sign_transaction(const struct curve *curve, const unsigned char *secret, const unsigned char *fields,
                        size_t length, unsigned char *answer) {
    unsigned char signature[65], compact[64], digest[32], signed_fields[67], *raw = answer + 32, *end;
    int parity;
    end = put_head(raw, length);
    memcpy(end, fields, length);
    keccak256(raw, (size_t)(end - raw) + length, digest);
    if (!curve->sign(curve->context, signature, digest, secret, NULL, NULL)) return 0;
    curve->serialize_compact(curve->context, compact, &parity, signature);
    signed_fields[0] = parity ? 0x01 : 0x80;
    end = put_number(put_number(signed_fields + 1, compact), compact + 32);
    size_t added = (size_t)(end - signed_fields);
    end = put_head(raw, length + added);
    memcpy(end, fields, length);
    memcpy(end + length, signed_fields, added);
    end += length + added;
    keccak256(raw, (size_t)(end - raw), answer);
    return (size_t)(end - answer);
}
