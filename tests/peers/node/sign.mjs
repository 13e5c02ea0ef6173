// Signs and verifies typed data with the libraries of wallets. Reads one request per line, and writes one answer per
// line.
//
//     {"by": "viem" | "ethers", "do": "sign", "key": "0x…", "typed": {domain, types, primaryType, message}}
//     {"by": …, "do": "verify", "address": "0x…", "signature": "0x…", "typed": {…}}
//
// Integers of messages are decimal strings. An answer is {"said": …}, or {"refused": the library's error}.
import { createInterface } from "node:readline";
import * as ethers from "ethers";
import { verifyTypedData } from "viem";
import { privateKeyToAccount } from "viem/accounts";

const libraries = {
  viem: {
    sign: ({ key, typed }) => privateKeyToAccount(key).signTypedData(typed),
    verify: ({ address, signature, typed }) => verifyTypedData({ address, signature, ...typed }),
  },
  ethers: {
    sign: ({ key, typed: { domain, types, message } }) => new ethers.Wallet(key).signTypedData(domain, types, message),
    verify: async ({ address, signature, typed: { domain, types, message } }) =>
      ethers.verifyTypedData(domain, types, message, signature) === ethers.getAddress(address),
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let answer;
  try {
    answer = { said: await libraries[asked.by][asked.do](asked) };
  } catch (error) {
    answer = { refused: String(error.shortMessage ?? error.message).split("\n")[0] };
  }
  console.log(JSON.stringify(answer));
}
