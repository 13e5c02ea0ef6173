// A browser controlled by lines: each line of standard input is a JSON array [command, ...arguments], each line
// of standard output {"ok": value} or {"error": text}. The browser is the system's Chromium (CHROMIUM, or one in PATH),
// or the one inside @sparticuz/chromium. `faults` returns the page's problems since the last call: script errors,
// console errors, and violations of the content security policy.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import puppeteer from "puppeteer-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TIMEOUT_MS = 15_000;

function system() {
  for (const name of [process.env.CHROMIUM, "chromium", "chromium-browser", "google-chrome"]) {
    if (!name) continue;
    try {
      return execFileSync("/bin/sh", ["-c", 'command -v "$0"', name], { encoding: "utf8" }).trim();
    } catch {
      continue; // not here
    }
  }
  return null;
}

// @sparticuz/chromium brings the libraries that Chromium needs, and unpacks them where this variable names an AWS Lambda.
async function bundled() {
  process.env.AWS_EXECUTION_ENV ??= "AWS_Lambda_nodejs24.x";
  const { default: chromium } = await import("@sparticuz/chromium");
  return { executablePath: await chromium.executablePath(), args: chromium.args };
}

const own = system();
const { executablePath, args } = own === null ? await bundled() : { executablePath: own, args: [] };
const browser = await puppeteer.launch({
  executablePath,
  args: [...args, "--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--font-render-hinting=none"],
  headless: own === null ? "shell" : true,
});
const page = await browser.newPage();
let faults = [];
let requested = [];

page.setDefaultTimeout(TIMEOUT_MS);
page.on("pageerror", (error) => faults.push(`script: ${error.message}`));
page.on("console", (message) => {
  if (message.type() === "error") faults.push(`console: ${message.text()} (${message.location().url ?? ""})`);
});
page.on("request", (request) => requested.push(request.url()));
await page.evaluateOnNewDocument(() => {
  addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
});

const text = (selector) => page.$eval(selector, (element) => element.innerText);

const commands = {
  open: async (url) => void (await page.goto(url, { waitUntil: "domcontentloaded" })),
  reload: async () => void (await page.reload({ waitUntil: "domcontentloaded" })),
  url: async () => page.url(),
  title: async () => page.title(),
  text,
  // Wait until a selector's text contains these words.
  see: async (selector, words) => {
    try {
      await page.waitForFunction((where, what) => [...document.querySelectorAll(where)].some((each) => each.innerText.includes(what)), {}, selector, words);
    } catch {
      throw new Error(`${selector} never said ${JSON.stringify(words)}, but: ${await text(selector).catch(() => "nothing")}`);
    }
  },
  count: async (selector) => (await page.$$(selector)).length,
  click: async (selector) => void (await page.click(selector)),
  choose: async (selector, value) => void (await page.select(selector, value)),
  type: async (selector, words) => void (await page.type(selector, words)),
  attach: async (selector, path) => void (await (await page.waitForSelector(selector)).uploadFile(path)),
  downloads: async (folder) => {
    const session = await browser.target().createCDPSession();
    await session.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: folder });
  },
  press: async (key) => void (await page.keyboard.press(key)),
  focused: async () => page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.id),
  evaluate: async (expression) => page.evaluate(expression),
  offline: async (is) => void (await page.setOfflineMode(is)),
  look: async ({ width = 1280, height = 900, dark = false, still = true }) => {
    await page.setViewport({ width, height, deviceScaleFactor: 1 });
    await page.emulateMediaFeatures([
      { name: "prefers-color-scheme", value: dark ? "dark" : "light" },
      { name: "prefers-reduced-motion", value: still ? "reduce" : "no-preference" },
    ]);
  },
  screenshot: async (path) => void (await page.screenshot({ path, fullPage: true })),
  // Injected by the protocol, because the page's policy allows no external script.
  axe: async () => {
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    return violations.map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => `${node.html} (${node.failureSummary})`).join(" | ")}`);
  },
  faults: async () => {
    const found = faults;
    faults = [];
    return found;
  },
  requested: async () => {
    const found = requested;
    requested = [];
    return found;
  },
};

process.stdout.write(`${JSON.stringify({ ok: await browser.version() })}\n`);
for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...given] = JSON.parse(line);
  let answer;
  try {
    answer = { ok: (await commands[name](...given)) ?? null };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
