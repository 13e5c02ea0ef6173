import { strictEqual } from "node:assert";

import { concat, encodeRlp, stripZerosLeft, Transaction } from "ethers";

import { Refused } from "../refused.mjs";

export const vectors = "block_contents.json";

const NEEDED = { 1: ["accessList"], 2: ["accessList"], 3: ["accessList", "maxFeePerBlobGas"], 4: ["accessList"] };
const integer = (quantity) => (BigInt(quantity) === 0n ? "0x" : stripZerosLeft(`0x${quantity.slice(2).padStart(64, "0")}`));

function transaction(told) {
  const type = Number(told.type);
  if (type > 4) throw new Refused("type");
  for (const name of NEEDED[type] ?? []) if (told[name] === undefined) throw new Refused(name);
  if (told.blobVersionedHashes?.some((hash) => hash.length !== 66)) throw new Refused("blobVersionedHashes");
  const priced = type < 2 ? { gasPrice: told.gasPrice } : {
    maxFeePerGas: told.maxFeePerGas, maxPriorityFeePerGas: told.maxPriorityFeePerGas,
  };
  const signature = (each) => ({ r: zeroed(each.r), s: zeroed(each.s), v: 27 + Number(each.yParity) });
  const made = Transaction.from({
    type, ...priced, chainId: told.chainId ?? 0, nonce: Number(told.nonce), gasLimit: told.gas, to: told.to,
    value: told.value, data: told.input, ...(type ? { accessList: told.accessList } : {}),
    ...(type === 3 ? { maxFeePerBlobGas: told.maxFeePerBlobGas, blobVersionedHashes: told.blobVersionedHashes } : {}),
    ...(type === 4 ? {
      authorizationList: told.authorizationList.map((each) => ({
        address: each.address, nonce: each.nonce, chainId: each.chainId, signature: signature(each),
      })),
    } : {}),
    signature: type ? signature(told) : { r: zeroed(told.r), s: zeroed(told.s), v: told.v },
  });
  if (made.hash !== told.hash) throw new Refused("hash");
  return made.serialized;
}

const zeroed = (quantity) => `0x${quantity.slice(2).padStart(64, "0")}`;

function receipt(told) {
  const logs = told.logs.map(({ address, topics, data }) => [address, topics, data]);
  const outcome = told.status === undefined ? told.root : integer(told.status);
  const encoded = encodeRlp([outcome, integer(told.cumulativeGasUsed), told.logsBloom, logs]);
  return Number(told.type) === 0 ? encoded : concat([`0x0${Number(told.type)}`, encoded]);
}

export function accept(one) {
  strictEqual(one.transaction ? transaction(one.transaction) : receipt(one.receipt), one.raw);
}
