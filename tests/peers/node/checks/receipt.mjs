import { strictEqual } from "node:assert";

import { Transaction, concat, concat as join, decodeRlp, encodeRlp, getBytes, id, keccak256, stripZerosLeft, toBeHex, verifyTypedData, zeroPadValue } from "ethers";

import { Refused } from "../refused.mjs";

const ORDER = [
  ["bytes32", "c"], ["uint32", "modelId"], ["uint32", "slaSecs"], ["uint128", "rateIn"], ["uint128", "rateOut"],
  ["uint32", "unitsIn"], ["uint32", "unitsOut"], ["uint32", "designated"], ["uint64", "expiresAt"],
];
const PAYMENT = [
  ["address", "from"], ["address", "to"], ["uint256", "value"], ["uint256", "validAfter"], ["uint256", "validBefore"],
  ["bytes32", "nonce"],
];
const fields = (listed) => listed.map(([type, name]) => ({ type, name }));
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

// Return the value at a trie's key, from the nodes on its path.
function proved(root, key, proof) {
  let path = [...key.slice(2)].map((digit) => parseInt(digit, 16));
  let child = root;
  const left = [...proof];
  for (;;) {
    if (typeof child === "string") {
      const encoded = left.shift();
      strictEqual(keccak256(encoded), child);
      child = decodeRlp(encoded);
    }
    if (child.length === 17) {
      [child, path] = [child[path[0]], path.slice(1)];
      continue;
    }
    const [flag, ...rest] = [...child[0].slice(2)].map((digit) => parseInt(digit, 16));
    const shared = flag % 2 ? rest : rest.slice(1);
    strictEqual(path.slice(0, shared.length).join(), shared.join());
    path = path.slice(shared.length);
    if (flag >= 2) {
      strictEqual(path.length + left.length, 0);
      return child[1];
    }
    child = child[1];
  }
}

function logsOf(step, at) {
  const header = decodeRlp(step.header);
  strictEqual(keccak256(step.header), step.block);
  const key = encodeRlp(step.index === "0" ? "0x" : toBeHex(BigInt(step.index)));
  strictEqual(keccak256(proved(header[4], key, step.transaction_proof)), step.transaction);
  const raw = proved(header[5], key, step.receipt_proof);
  const [status, , , logs] = decodeRlp(getBytes(raw)[0] < 0x80 ? `0x${raw.slice(4)}` : raw);
  if (status !== "0x01") throw new Refused(`${at}.log`);
  return { logs, number: BigInt(header[8]) };
}

function checkSignatures(said) {
  const { market, owner, order } = said;
  const domain = (name, version, contract) => ({ name, version, chainId: market.chain_id, verifyingContract: contract });
  const message = Object.fromEntries(ORDER.map(([, name]) => [name, order[snake(name)]]));
  const jobs = domain("SVC Jobs", "2", market.job_registry);
  strictEqual(verifyTypedData(jobs, { Order: fields(ORDER) }, message, said.order_signature).toLowerCase(), owner);
  const payment = {
    from: owner, to: market.job_registry, value: said.payment.amount, validAfter: 0,
    validBefore: BigInt(order.expires_at) + 1n, nonce: said.job_id,
  };
  const token = domain(market.token_name, market.token_version, market.token);
  const types = { ReceiveWithAuthorization: fields(PAYMENT) };
  strictEqual(verifyTypedData(token, types, payment, said.payment.signature).toLowerCase(), owner);
  strictEqual(keccak256(join([owner, order.c])), said.job_id);
}

function checkReceipt(one) {
  const said = JSON.parse(one.receipt);
  const word = (value) => zeroPadValue(value, 32);
  const steps = said.steps.map((step, n) => ({ ...step, ...logsOf(step, `steps.${n}`) }));
  steps.forEach((step, n) => {
    if (n > 0 && steps[n - 1].number >= step.number) throw new Refused(`steps.${n}`);
    const [address, topics] = step.logs[Number(step.log)];
    if (address !== said.market.job_registry) throw new Refused("market.job_registry");
    strictEqual(topics[1], said.job_id);
  });
  checkSignatures(said);
  if (said.provider_id === null) return;
  const has = (wanted) => steps[1].logs.some((log) => JSON.stringify(log) === JSON.stringify(wanted));
  const used = [said.market.token, [id("AuthorizationUsed(address,bytes32)"), word(said.owner), said.job_id], "0x"];
  const parties = [word(said.owner), word(said.market.job_registry)];
  const amount = toBeHex(BigInt(said.payment.amount), 32);
  const moved = [said.market.token, [id("Transfer(address,address,uint256)"), ...parties], amount];
  if (!has(used) || !has(moved)) throw new Refused("market.token");
}

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

function checkBlockContents(one) {
  strictEqual(one.transaction ? transaction(one.transaction) : receipt(one.receipt), one.raw);
}

export const checks = { "receipt.json": checkReceipt, "block_contents.json": checkBlockContents };
