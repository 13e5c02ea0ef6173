import { deepStrictEqual, strictEqual } from "node:assert";

import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { hkdf } from "@noble/hashes/hkdf.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { TypedDataEncoder, recoverAddress } from "ethers";
import nacl from "tweetnacl";

import { bigEndian, concat, hex, unhex, utf8 } from "../bytes.mjs";
import { Refused } from "../refused.mjs";
import { canonical, parse } from "../strict_json.mjs";

const EMPTY = new Uint8Array();
const bytes = (text) => unhex(text.slice(2));
const hexed = (raw) => `0x${hex(raw)}`;

// --- forms ---------------------------------------------------------------------------------------

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isCount = (value) => Number.isSafeInteger(value) && value >= 0 && value < 2 ** 32;
const isId = (value) => isCount(value) && value > 0;
const isHex = (length) => (value) => typeof value === "string" && new RegExp(`^0x[0-9a-fA-F]{${2 * length}}$`).test(value);
const isText = (longest) => (value) => typeof value === "string" && value.length > 0 && [...value].length <= longest;
const isList = (is, least, most) => (value) =>
  Array.isArray(value) && value.length >= least && value.length <= most && value.every(is);
const isOne = (value) => value === 1;
const isAny = () => true;
const isTime = (value) => Number.isSafeInteger(value) && value >= 0;
const has = (form, optional = {}) => (value) =>
  isObject(value) &&
  Object.entries(form).every(([name, is]) => name in value && is(value[name])) &&
  Object.keys(value).every((name) => name in form || (name in optional && optional[name](value[name])));

const DELEGATION = { voucher_key: isHex(20), delegated_until: isTime, delegation: isHex(65) };
// X25519 refuses a key of low order: the shared secret would be zero.
const isKey = (value) => isHex(32)(value) && nacl.scalarMult(sha256(EMPTY), bytes(value)).some((byte) => byte);
const isPayload = has({ svc_tab: isOne, channel_key: isKey, ...DELEGATION });
const isVoucher = has({
  number: isCount, allowance: isCount, acknowledged: isCount, chain: isHex(32), signature: isHex(65),
});
const isDirect = has({ url: isText(512), certificate: isText(16384), token: isText(128) });
const UNITS = { units_in: isCount, units_out: isCount };
const MESSAGES = {
  owner: {
    request: has({ t: isAny, id: isId, input: isObject, voucher: isVoucher }),
    ack: has({ t: isAny, ids: isList(isCount, 1, 64), voucher: isVoucher }),
    close: has({ t: isAny }),
  },
  provider: {
    welcome: has(
      {
        t: isAny, parallel: isCount, seconds: isCount, number: isCount, acknowledged: isCount,
        answered: isList(isCount, 0, 64),
      },
      { direct: isDirect },
    ),
    delta: has({ t: isAny, id: isId, first: isCount, chunks: isList(isObject, 1, 256) }),
    answer: has({ t: isAny, id: isId, output: isAny, usage: isObject, ...UNITS }),
    failed: has({ t: isAny, id: isId, code: isText(64) }),
    closing: has({ t: isAny, reason: isText(64) }),
  },
};
const isExchange = has({ id: isCount, input: isHex(32), output: isAny, usage: isObject, ...UNITS });
const isTranscript = has({
  svc_tab: isOne, closed: isText(64), exchanges: isList(isExchange, 0, 100000),
  voucher: (value) => value === null || isVoucher(value), ...DELEGATION,
});

function message(one) {
  let read;
  try {
    read = parse(utf8(one.text));
  } catch (error) {
    throw error instanceof Refused ? new Refused("malformed_message") : error;
  }
  const kinds = MESSAGES[one.sender];
  if (!isObject(read) || !Object.hasOwn(kinds, read.t) || !kinds[read.t](read)) throw new Refused("malformed_message");
  strictEqual(canonical(read), one.text);
  strictEqual(read.t, one.read);
}

// --- transcript ----------------------------------------------------------------------------------

const TYPES = {
  TabKey: [["address", "key"], ["uint32", "providerId"], ["uint64", "expiresAt"]],
  TabVoucher: [
    ["bytes32", "jobId"], ["uint32", "number"], ["uint32", "allowance"], ["uint32", "acknowledged"], ["bytes32", "chain"],
  ],
};

function digestOf(one, type, values) {
  const domain = { name: "SVC Tabs", version: "1", chainId: one.chain_id, verifyingContract: one.job_registry };
  return TypedDataEncoder.hash(domain, { [type]: TYPES[type].map(([type, name]) => ({ type, name })) }, values);
}

const signerOf = (digest, signature) => recoverAddress(digest, signature).toLowerCase();

function chainOf(one) {
  const exchanges = one.output.exchanges;
  return exchanges.reduce((chain, each) => {
    const answer = sha256(utf8(canonical({ output: each.output, usage: each.usage })));
    const counts = [bigEndian(each.units_in, 4), bigEndian(each.units_out, 4)];
    return sha256(concat(chain, bigEndian(each.id, 4), bytes(each.input), answer, ...counts));
  }, sha256(concat(utf8("svc-tab-chain-v1"), bytes(one.job_id))));
}

function chargeOf(one) {
  const sum = (name) => one.output.exchanges.reduce((total, each) => total + BigInt(each[name]), 0n);
  const [rateIn, rateOut] = [BigInt(one.rate_in), BigInt(one.rate_out)];
  return sum("units_out") + (rateOut ? (sum("units_in") * rateIn + rateOut - 1n) / rateOut : 0n);
}

function transcript(one) {
  if (!isTranscript(one.output)) throw new Refused("malformed_transcript");
  const { voucher, voucher_key: key, delegated_until: expiresAt, delegation, exchanges } = one.output;
  const chain = hexed(chainOf(one));
  strictEqual(chain, one.chain);
  const delegated = digestOf(one, "TabKey", { key, providerId: one.provider_id, expiresAt });
  if (one.delegation_digest !== undefined) strictEqual(delegated, one.delegation_digest);
  let holds = signerOf(delegated, delegation) === one.owner;
  if (voucher === null) holds &&= exchanges.length === 0;
  else {
    const digest = digestOf(one, "TabVoucher", { jobId: one.job_id, ...voucher });
    if (one.voucher_digest !== undefined) strictEqual(digest, one.voucher_digest);
    holds &&= signerOf(digest, voucher.signature) === key;
    holds &&= voucher.chain === chain && BigInt(voucher.acknowledged) === chargeOf(one);
  }
  const proves = one.completion_tok > (voucher?.acknowledged ?? 0) ? "overcharge" : "charge";
  strictEqual(holds ? proves : "nothing", one.proves);
}

// --- channel: Noise_KK_25519_ChaChaPoly_SHA256 ----------------------------------------------------

function cipher(key) {
  let number = 0n;
  const next = (bound) => {
    const nonce = new Uint8Array(12);
    new DataView(nonce.buffer).setBigUint64(4, number, true);
    number += 1n;
    return chacha20poly1305(key, nonce, bound);
  };
  return {
    encrypt: (plaintext, bound = EMPTY) => next(bound).encrypt(plaintext),
    decrypt(ciphertext, bound = EMPTY) {
      try {
        return next(bound).decrypt(ciphertext);
      } catch {
        throw new Refused("bad_frame");
      }
    },
  };
}

class Handshake {
  constructor(one, channelId, publicKeys) {
    this.chaining = utf8("Noise_KK_25519_ChaChaPoly_SHA256");
    this.hash = this.chaining;
    const place = [bigEndian(one.chain_id, 32), bytes(one.job_registry), bytes(one.job_id), channelId];
    this.mixHash(concat(utf8("svc-tab-1"), ...place));
    for (const key of publicKeys) this.mixHash(key);
  }

  mixHash(data) {
    this.hash = sha256(concat(this.hash, data));
  }

  mixKey(mine, theirs) {
    const both = hkdf(sha256, nacl.scalarMult(mine, theirs), this.chaining, EMPTY, 64);
    this.chaining = both.slice(0, 32);
    this.cipher = cipher(both.slice(32));
  }

  encrypt(plaintext) {
    const ciphertext = this.cipher.encrypt(plaintext, this.hash);
    this.mixHash(ciphertext);
    return ciphertext;
  }

  decrypt(ciphertext) {
    const plaintext = this.cipher.decrypt(ciphertext, this.hash);
    this.mixHash(ciphertext);
    return plaintext;
  }

  split() {
    const both = hkdf(sha256, EMPTY, this.chaining, EMPTY, 64);
    return { owner: cipher(both.slice(0, 32)), provider: cipher(both.slice(32)) };
  }
}

const publicOf = (secret) => nacl.scalarMult.base(secret);
const frame = (kind, channelId, body) => concat(Uint8Array.of(kind), channelId, body);

function parsed(text, kind, channelId) {
  const raw = bytes(text);
  if (raw.length < 9 || raw[0] !== kind || (channelId && hex(raw.slice(1, 9)) !== hex(channelId))) {
    throw new Refused("bad_frame");
  }
  return { channelId: raw.slice(1, 9), body: raw.slice(9) };
}

function keysOf(one) {
  const names = ["owner_secret", "owner_ephemeral", "box_secret", "box_ephemeral"];
  return names.map((name) => ({ secret: bytes(one[name]), public: publicOf(bytes(one[name])) }));
}

function channel(one) {
  const [owner, ephemeral, box, answering] = keysOf(one);
  const id = bytes(one.channel_id);
  const state = new Handshake(one, id, [owner.public, box.public]);
  state.mixHash(ephemeral.public);
  state.mixKey(ephemeral.secret, box.public);
  state.mixKey(owner.secret, box.public);
  const frames = [frame(1, id, concat(ephemeral.public, state.encrypt(EMPTY)))];
  state.mixHash(answering.public);
  state.mixKey(answering.secret, ephemeral.public);
  state.mixKey(answering.secret, owner.public);
  frames.push(frame(2, id, concat(answering.public, state.encrypt(bytes(one.payload)))));
  const ciphers = state.split();
  for (const sent of one.sent) {
    frames.push(frame(3, id, ciphers[sent.from].encrypt(concat(Uint8Array.of(0), bytes(sent.message)))));
  }
  deepStrictEqual(frames.map(hexed), one.frames);
}

function received(one) {
  const [owner, ephemeral, box, answering] = keysOf(one);
  const [first, second, ...rest] = one.given;
  const hello = parsed(first, 1);
  const provider = new Handshake(one, hello.channelId, [owner.public, box.public]);
  const theirs = hello.body.slice(0, 32);
  provider.mixHash(theirs);
  provider.mixKey(box.secret, theirs);
  provider.mixKey(box.secret, owner.public);
  provider.decrypt(hello.body.slice(32));

  const client = new Handshake(one, bytes(one.channel_id), [owner.public, box.public]);
  client.mixHash(ephemeral.public);
  client.mixKey(ephemeral.secret, box.public);
  client.mixKey(owner.secret, box.public);
  client.encrypt(EMPTY);
  const welcome = parsed(second, 2, bytes(one.channel_id));
  const answered = welcome.body.slice(0, 32);
  client.mixHash(answered);
  client.mixKey(ephemeral.secret, answered);
  client.mixKey(owner.secret, answered);
  const payload = client.decrypt(welcome.body.slice(32));
  strictEqual(hex(answered), hex(answering.public));

  const { owner: incoming } = client.split();
  const opened = rest.map((text) => {
    const plaintext = incoming.decrypt(parsed(text, 3, bytes(one.channel_id)).body);
    if (plaintext[0] !== 0) throw new Refused("bad_frame");
    return hexed(plaintext.slice(1));
  });
  deepStrictEqual([hexed(payload), ...opened], one.opened);
}

// --------------------------------------------------------------------------------------------------

function checkTab(one) {
  if (one.kind === "evidence") {
    return strictEqual(isObject(one.evidence) && isObject(one.evidence.svc_tab) && one.evidence.svc_tab.v === 1, one.announced);
  }
  if (one.kind === "payload") {
    if (!isPayload(one.input)) throw new Refused("malformed_tab");
    return strictEqual(one.input.channel_key, one.read);
  }
  return { message, transcript, channel, received }[one.kind](one);
}

export const checks = { "tab.json": checkTab };
