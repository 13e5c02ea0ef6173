/* keccak-f[1600] over words of the type LANE, as a function named PERMUTE for processors that have FEATURES: included
 * once for each kind of word. */

FEATURES static void PERMUTE(LANE a[25]) {
    for (int round = 0; round < 24; round++) {
        LANE row[5], word;
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
            LANE next = a[TARGET[i]];
            a[TARGET[i]] = LEFT(word, TURN[i]);
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

#undef PERMUTE
#undef LANE
#undef FEATURES
