export const unhex = (text) => Uint8Array.from(Buffer.from(text, "hex"));
export const hex = (bytes) => Buffer.from(bytes).toString("hex");
export const concat = (...parts) => Uint8Array.from(Buffer.concat(parts.map((part) => Buffer.from(part))));
export const utf8 = (text) => new TextEncoder().encode(text);

// Encode an unsigned integer as `length` bytes, most significant first.
export function bigEndian(number, length) {
  return unhex(BigInt(number).toString(16).padStart(2 * length, "0"));
}

// Return the bytes of a vector that gives only a length: byte i is (7·i + ⌊i/256⌋) mod 256.
export function pattern(length) {
  return Uint8Array.from({ length }, (_, i) => (7 * i + Math.floor(i / 256)) % 256);
}
