import { strictEqual } from "node:assert";

import { Transaction, Wallet } from "ethers";

export const vectors = "transactions.json";

export function accept(one) {
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
