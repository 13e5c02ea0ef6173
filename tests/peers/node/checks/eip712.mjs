import { strictEqual } from "node:assert";

import { TypedDataEncoder, Wallet, recoverAddress } from "ethers";

export const vectors = "eip712.json";

export function accept(one) {
  const encoder = TypedDataEncoder.from(one.types);
  strictEqual(encoder.primaryType, one.primary_type);
  strictEqual(encoder.encodeType(one.primary_type), one.type);
  strictEqual(TypedDataEncoder.hashDomain(one.domain), one.separator);
  strictEqual(encoder.hash(one.message), one.struct_hash);
  strictEqual(TypedDataEncoder.hash(one.domain, one.types, one.message), one.digest);
  strictEqual(new Wallet(one.secret).signingKey.sign(one.digest).serialized, one.signature);
  strictEqual(recoverAddress(one.digest, one.signature).toLowerCase(), one.signer);
}
