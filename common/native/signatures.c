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

#include "keccak.h"

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

static int recover(const struct curve *curve, const unsigned char *digest, const unsigned char *signature,
                   unsigned char point[65]) {
    unsigned char parsed[65], key[64];
    size_t length = 65;
    int parity = signature[64] - 27;
    if ((parity != 0 && parity != 1) || memcmp(signature + 32, HALF_ORDER, 32) > 0) return 0;
    if (!curve->parse(curve->context, parsed, signature, parity)) return 0;
    if (!curve->recover(curve->context, key, parsed, digest)) return 0;
    curve->serialize(curve->context, point, &length, key, curve->uncompressed);
    return 1;
}

/* `items`: `count` times prefix (34) ‖ signature (65) ‖ length of the struct (4, little-endian) ‖ struct.
 * `answers`: as many times found (1) ‖ address (20). */
void signers(const struct curve *curve, size_t count, const unsigned char *items, unsigned char *answers) {
    while (count) {
        size_t some = count < ABREAST ? count : ABREAST;
        unsigned char messages[ABREAST][PREFIX + 32], points[ABREAST][65] = {{0}};
        const unsigned char *signatures[ABREAST];
        struct hashing all[ABREAST];
        for (size_t k = 0; k < some; k++) {
            uint32_t length;
            signatures[k] = items + PREFIX;
            memcpy(messages[k], items, PREFIX);
            memcpy(&length, signatures[k] + SIGNATURE, sizeof length);
            all[k].data = signatures[k] + SIGNATURE + sizeof length;
            all[k].length = length;
            items = all[k].data + length;
        }
        keccak256(all, some);
        for (size_t k = 0; k < some; k++) {
            memcpy(messages[k] + PREFIX, all[k].digest, 32);
            all[k].data = messages[k];
            all[k].length = sizeof messages[k];
        }
        keccak256(all, some);
        for (size_t k = 0; k < some; k++) {
            answers[k * (1 + ADDRESS)] = recover(curve, all[k].digest, signatures[k], points[k]);
            all[k].data = points[k] + 1;
            all[k].length = 64;
        }
        keccak256(all, some);
        for (size_t k = 0; k < some; k++, answers += 1 + ADDRESS) memcpy(answers + 1, all[k].digest + 12, ADDRESS);
        count -= some;
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
    unsigned char signature[65], compact[64], signed_fields[67], *raw = answer + 32, *end;
    struct hashing one = {.data = raw};
    int parity;
    end = put_head(raw, length);
    memcpy(end, fields, length);
    one.length = (size_t)(end - raw) + length;
    keccak256(&one, 1);
    if (!curve->sign(curve->context, signature, one.digest, secret, NULL, NULL)) return 0;
    curve->serialize_compact(curve->context, compact, &parity, signature);
    signed_fields[0] = parity ? 0x01 : 0x80;
    end = put_number(put_number(signed_fields + 1, compact), compact + 32);
    size_t added = (size_t)(end - signed_fields);
    end = put_head(raw, length + added);
    memcpy(end, fields, length);
    memcpy(end + length, signed_fields, added);
    end += length + added;
    one.length = (size_t)(end - raw);
    keccak256(&one, 1);
    memcpy(answer, one.digest, 32);
    return (size_t)(end - answer);
}
