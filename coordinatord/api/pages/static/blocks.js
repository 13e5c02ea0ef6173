// Times of blocks, with a cache, because a block's time changes only in a reorg.

import { get } from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { when } from "./times.js";

const MAX_REQUESTED = 100;
const MAX_CACHED = 2_000;
const CACHE_MS = 60_000; // until the time of a block is requested again
const known = new Map(); // by number: {time, until}

// Return the Unix times of these blocks, by number, without unknown blocks.
export async function blockTimes(numbers) {
  const now = Date.now();
  const wanted = [...new Set(numbers.filter(Boolean).map(String))];
  const asked = wanted.filter((each) => !(known.get(each)?.until > now)).slice(0, MAX_REQUESTED);
  if (asked.length > 0) {
    const { blocks } = await get(`/evm/blocks?numbers=${asked.join(",")}`);
    for (const each of asked) {
      known.delete(each); // so that the map is in the order of the requests
      known.set(each, { time: null, until: now + CACHE_MS });
    }
    for (const each of blocks) known.get(each.number).time = each.time;
  }
  const times = new Map(wanted.map((each) => [each, known.get(each)?.time ?? null]).filter(([, time]) => time !== null));
  for (const oldest of [...known.keys()].slice(0, Math.max(0, known.size - MAX_CACHED))) known.delete(oldest);
  return times;
}

// Return the time of a block with its number, or the number alone if the time is unknown.
export function blockAt(block, times) {
  const time = times.get(String(block));
  return time === undefined ? [`Block ${number(block)}`] : [when(time), h("span", { class: "faint" }, ` in block ${number(block)}`)];
}
