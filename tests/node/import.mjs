// Files imported by ipfs-unixfs-importer: one request a line on standard input, one answer a line on standard output.
//
//     {"path": …, "chunk_size": …, "width": …}  →  {"cid": …, "blocks": {cid: base64}}
//
// With "width": 0 the importer's own defaults are taken, whatever they are by now.
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
