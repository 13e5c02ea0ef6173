// libsodium's secretstream from its primitives: HChaCha20, ChaCha20 (IETF) and Poly1305, one frame at a time. Rekeying
// is left out, because no accepted stream needs it (2^32 frames are 256 TiB).

import { poly1305 } from "@noble/ciphers/_poly1305.js";
import { chacha20, hchacha } from "@noble/ciphers/chacha.js";

import { concat } from "./bytes.mjs";

export const MESSAGE = 0;
export const FINAL = 3;
const SIGMA = Uint32Array.from([0x61707865, 0x3320646e, 0x79622d32, 0x6b206574]); // "expand 32-byte k"

const words = (bytes) => new Uint32Array(Uint8Array.from(bytes).buffer);
const le64 = (number) => new Uint8Array(new BigUint64Array([BigInt(number)]).buffer);

export class SecretStream {
  constructor(key, header) {
    const derived = new Uint32Array(8);
    hchacha(SIGMA, words(key), words(header.subarray(0, 16)), derived);
    this.key = new Uint8Array(derived.buffer);
    this.nonce = concat([1, 0, 0, 0], header.subarray(16, 24)); // counter, then the inner nonce
  }

  push(plaintext, tag) {
    const sealedTag = this.#tagBlock(tag);
    const ciphertext = chacha20(this.key, this.nonce, plaintext, undefined, 2);
    const mac = this.#mac(sealedTag, ciphertext);
    this.#advance(mac);
    return concat([sealedTag[0]], ciphertext, mac);
  }

  // [plaintext, tag], or null if the frame does not open.
  pull(sealed) {
    if (sealed.length < 17) return null;
    const ciphertext = sealed.subarray(1, -16);
    const sealedTag = this.#tagBlock(0);
    const tag = sealedTag[0] ^ sealed[0];
    sealedTag[0] = sealed[0];
    const mac = this.#mac(sealedTag, ciphertext);
    if (Buffer.compare(mac, sealed.subarray(-16)) !== 0) return null;
    const plaintext = chacha20(this.key, this.nonce, ciphertext, undefined, 2);
    this.#advance(mac);
    return [plaintext, tag];
  }

  #tagBlock(tag) {
    const block = new Uint8Array(64);
    block[0] = tag;
    return chacha20(this.key, this.nonce, block, undefined, 1);
  }

  #mac(sealedTag, ciphertext) {
    const macKey = chacha20(this.key, this.nonce, new Uint8Array(32), undefined, 0);
    // The padding copies libsodium exactly, which pads by length mod 16 instead of up to a multiple of 16.
    const padding = new Uint8Array(ciphertext.length & 15);
    return poly1305(concat(sealedTag, ciphertext, padding, le64(0), le64(64 + ciphertext.length)), macKey);
  }

  #advance(mac) {
    for (let i = 0; i < 8; i += 1) this.nonce[4 + i] ^= mac[i];
    const counter = new DataView(this.nonce.buffer);
    counter.setUint32(0, counter.getUint32(0, true) + 1, true);
  }
}
