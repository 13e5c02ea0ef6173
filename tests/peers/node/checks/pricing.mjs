import { deepStrictEqual } from "node:assert";

import { Refused } from "../refused.mjs";
import { canonical } from "../strict_json.mjs";

const TIERS = { "480p": [854, 480], "720p": [1280, 720], "1080p": [1920, 1080], "4k": [3840, 2160] };
const RATIOS = { "21:9": [21, 9], "16:9": [16, 9], "4:3": [4, 3], "1:1": [1, 1], "3:4": [3, 4], "9:16": [9, 16] };
const CAPS = ["max_output_tokens", "max_tokens", "max_completion_tokens"];
const LISTS = { reference_images: 9, reference_videos: 3, reference_audios: 3 };

const require = (holds) => {
  if (!holds) throw new Refused("unpriceable");
};

function count(value, least) {
  require(Number.isSafeInteger(value) && value >= least);
  return value;
}

function assetsOf(input) {
  const assets = ["image", "end_image", "video"].filter((key) => key in input).map((key) => asset(input[key], key));
  for (const [key, most] of Object.entries(LISTS)) {
    require((input[key] ?? []).length <= most);
    assets.push(...(input[key] ?? []).map((one) => asset(one, key)));
  }
  require(assets.filter((one) => one.pixels).length <= 12);
  return assets;
}

function asset(one, key) {
  require(one.b64 && one.media_type);
  if (key === "reference_audios") return { pixels: 0, units: 0 };
  const [width, height] = [count(one.width, 1), count(one.height, 1)];
  const seconds = key.includes("video") ? count(one.duration_secs, 1) : 1;
  require(width * height <= 8_294_400 && seconds <= 60);
  return { width, height, pixels: width * height, units: width * height * seconds };
}

function modalityOf(endpoint, input) {
  const names = (...keys) => keys.some((key) => key in input);
  if (endpoint === "/v1/embeddings") return "embeddings";
  if (names(...CAPS)) return "text";
  if (names("duration", "duration_secs")) return "video";
  const assets = names("image", "end_image", "video", ...Object.keys(LISTS));
  return names("num_images", "width", "resolution") || assets ? "image" : "text";
}

function frameOf(tier, ratio) {
  const [width, height] = TIERS[tier];
  if (ratio === "16:9") return width * height;
  const [a, b] = RATIOS[ratio];
  const even = (side) => 2 * Math.round(side / 2);
  return even(Math.sqrt((width * height * a) / b)) * even(Math.sqrt((width * height * b) / a));
}

function framePixels(input, assets) {
  const asked = input.aspect_ratio ?? "auto";
  require(asked === "auto" || asked === "adaptive" || asked in RATIOS);
  if ("width" in input || "height" in input) return count(input.width ?? 1024, 1) * count(input.height ?? 1024, 1);
  if (!("resolution" in input)) return 1024 * 1024;
  require(input.resolution in TIERS);
  const each = Object.keys(RATIOS);
  if (asked === "adaptive") return Math.max(...each.map((ratio) => frameOf(input.resolution, ratio)));
  if (asked !== "auto") return frameOf(input.resolution, asked);
  const first = assets.find((one) => one.pixels);
  if (!first) return frameOf(input.resolution, "16:9");
  const away = (ratio) => Math.abs(Math.log((first.width * RATIOS[ratio][1]) / (first.height * RATIOS[ratio][0])));
  return frameOf(input.resolution, each.reduce((best, ratio) => (away(ratio) < away(best) ? ratio : best)));
}

function secondsOf(input) {
  const value = input.duration_secs ?? input.duration;
  if (value === "auto") return 15;
  require(typeof value === "number" || /^[0-9]{1,15}$/.test(value));
  return Math.max(0, Math.trunc(Number(value))) || 5;
}

function checkUnits({ endpoint, input, ...told }) {
  const modality = modalityOf(endpoint, input);
  let [unitsIn, unitsOut] = [0, 0];
  if (modality === "image" || modality === "video") {
    const assets = assetsOf(input);
    unitsIn = assets.reduce((sum, one) => sum + one.units, 0);
    unitsOut = framePixels(input, assets) * (modality === "video" ? secondsOf(input) : count(input.num_images ?? 1, 1));
  } else {
    unitsIn = Math.max(1, Math.ceil(Buffer.byteLength(canonical(input)) / 4));
    const caps = CAPS.filter((key) => key in input).map((key) => count(input[key], 0));
    unitsOut = modality === "text" ? (caps.find((cap) => cap > 0) ?? 4096) : 0;
  }
  require(Math.max(unitsIn, unitsOut) < 2 ** 32);
  deepStrictEqual([modality, unitsIn, unitsOut], [told.modality, told.units_in, told.units_out]);
}

const max = (a, b) => (a > b ? a : b);
const price = (rateIn, rateOut, unitsIn, unitsOut) =>
  max(1n, (rateIn * unitsIn + rateOut * unitsOut + 999_999n) / 1_000_000n);

function checkQuotes(one) {
  const number = (name) => BigInt(one[name]);
  const rates = [number("rate_in"), number("rate_out"), number("units_in")];
  if (number("completion_tok") > number("units_out")) throw new Refused("too_many_units");
  const cap = price(...rates, number("units_out"));
  if (cap >= 1n << 128n) throw new Refused("cap_overflow");
  const fee = (cap * number("fee_bps")) / 10_000n;
  const amount = cap + fee + number("gas_fee");
  const provider = price(...rates, number("completion_tok"));
  const treasury = (provider * number("fee_bps")) / 10_000n + number("gas_fee");
  const owner = amount - provider - treasury;
  for (const [name, value] of Object.entries({ cap, fee, amount, provider, treasury, owner })) {
    deepStrictEqual([name, value], [name, number(name)]);
  }
}

export const checks = { "units.json": checkUnits, "quotes.json": checkQuotes };
