import { strictEqual } from "node:assert";

import { importBytes } from "ipfs-unixfs-importer";
import { fixedSize } from "ipfs-unixfs-importer/chunker";
import { balanced } from "ipfs-unixfs-importer/layout";
import { CID } from "multiformats/cid";

import { hex, pattern, unhex, utf8 } from "../bytes.mjs";
import { Refused } from "../refused.mjs";
import { bareHex, base64, hexOf, hexUpto, uint } from "../scalars.mjs";
import { canonical, parse } from "../strict_json.mjs";

const READERS = { uint, hex: hexOf, bare_hex: bareHex, hex_upto: hexUpto, base64 };

function checkScalars(one) {
  strictEqual(READERS[one.reader](Number(one.limit), one.json).toString(), one.read);
}

function checkStrictJson(one) {
  const value = parse(one.hex === undefined ? utf8(one.text) : unhex(one.hex));
  const spelled = canonical(value);
  strictEqual(spelled, one.canonical);
  strictEqual(canonical(parse(utf8(spelled))), spelled);
}

const CODECS = { 0x55: "raw", 0x70: "dag-pb" };

function parseCid(text) {
  let cid;
  try {
    cid = CID.parse(text);
  } catch {
    throw new Refused("malformed_cid");
  }
  const { code, size } = cid.multihash;
  const known = cid.version === 1 && cid.code in CODECS && code === 0x12 && size === 32;
  // a parsed CID caches its text, so create it from the bytes to encode it again
  if (!known || CID.decode(cid.bytes).toString() !== text) throw new Refused("malformed_cid");
  return cid;
}

function names(cid, one) {
  strictEqual(CODECS[cid.code], one.codec);
  strictEqual(hex(cid.multihash.digest), one.digest);
}

async function checkCid(one) {
  if (one.text !== undefined) return void names(parseCid(one.text), one);
  const store = { put: async (cid) => cid };
  const { cid } = await importBytes(pattern(one.length), store, {
    cidVersion: 1,
    rawLeaves: true,
    reduceSingleLeafToSelf: true,
    chunker: fixedSize({ chunkSize: one.chunk_size }),
    layout: balanced({ maxChildrenPerNode: one.width }),
  });
  strictEqual(cid.toString(), one.cid);
  names(parseCid(one.cid), one);
}

export const checks = {
  "scalars.json": checkScalars,
  "strict_json.json": checkStrictJson,
  "cid.json": checkCid,
};
