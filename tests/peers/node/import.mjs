// Imports files with ipfs-unixfs-importer. Reads one request per line, and writes one answer per line.
//
//     {"path": …, "chunk_size": …, "width": …}  →  {"cid": …, "blocks": {cid: base64}}
//
// "width": 0 uses the importer's current defaults.
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";

import { importBytes } from "ipfs-unixfs-importer";
import { fixedSize } from "ipfs-unixfs-importer/chunker";
import { balanced } from "ipfs-unixfs-importer/layout";

for await (const line of createInterface({ input: process.stdin })) {
  const { path, chunk_size: chunkSize, width } = JSON.parse(line);
  const blocks = {};
  const store = {
    put: async (cid, block) => {
      blocks[cid.toString()] = Buffer.from(block).toString("base64");
      return cid;
    },
  };
  const profile = {
    cidVersion: 1,
    rawLeaves: true,
    reduceSingleLeafToSelf: true,
    chunker: fixedSize({ chunkSize }),
    layout: balanced({ maxChildrenPerNode: width }),
  };
  const { cid } = await importBytes(await readFile(path), store, width === 0 ? {} : profile);
  console.log(JSON.stringify({ cid: cid.toString(), blocks }));
}
