import { strictEqual } from "node:assert";

import { Transaction, TypedDataEncoder, Wallet, dataLength, dataSlice, recoverAddress, toBigInt } from "ethers";

import { Refused } from "../refused.mjs";

function checkEip712(one) {
  const encoder = TypedDataEncoder.from(one.types);
  strictEqual(encoder.primaryType, one.primary_type);
  strictEqual(encoder.encodeType(one.primary_type), one.type);
  strictEqual(TypedDataEncoder.hashDomain(one.domain), one.separator);
  strictEqual(encoder.hash(one.message), one.struct_hash);
  strictEqual(TypedDataEncoder.hash(one.domain, one.types, one.message), one.digest);
  strictEqual(new Wallet(one.secret).signingKey.sign(one.digest).serialized, one.signature);
  strictEqual(recoverAddress(one.digest, one.signature).toLowerCase(), one.signer);
}

const ORDER = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n;

function checkSignatures(one) {
  if (dataLength(one.signature) !== 65) throw new Refused("bad_length");
  const r = toBigInt(dataSlice(one.signature, 0, 32));
  const s = toBigInt(dataSlice(one.signature, 32, 64));
  const v = toBigInt(dataSlice(one.signature, 64));
  if (v !== 27n && v !== 28n) throw new Refused("bad_v");
  if (r === 0n) throw new Refused("r_zero");
  if (r >= ORDER) throw new Refused("r_not_below_n");
  if (s === 0n) throw new Refused("s_zero");
  if (s > ORDER / 2n) throw new Refused("high_s");
  let signer;
  try {
    signer = recoverAddress(one.digest, one.signature);
  } catch {
    throw new Refused("no_point");
  }
  strictEqual(signer.toLowerCase(), one.signer);
}

function checkTransactions(one) {
  const wallet = new Wallet(one.secret);
  const transaction = Transaction.from({
    type: 2,
    chainId: one.chain_id,
    maxPriorityFeePerGas: one.max_priority_fee_per_gas,
    maxFeePerGas: one.max_fee_per_gas,
    gasLimit: one.gas,
    to: one.to,
    value: one.value,
    data: `0x${one.data.slice(2).repeat(Number(one.data_repeated))}`,
  });
  transaction.nonce = Number(one.nonce);
  transaction.signature = wallet.signingKey.sign(transaction.unsignedHash);
  strictEqual(wallet.address.toLowerCase(), one.sender);
  strictEqual(transaction.hash, one.hash);
  if (one.raw !== null) strictEqual(transaction.serialized, one.raw);
}

export const checks = {
  "eip712.json": checkEip712,
  "signatures.json": checkSignatures,
  "transactions.json": checkTransactions,
};
