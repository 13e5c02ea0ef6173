// How to buy in this market: commands to copy, with the market's address and one of its models.

import { models } from "./api.js";
import { lines } from "./code.js";
import { h } from "./dom.js";
import { address } from "./http.js";

export function buy() {
  return {
    title: "Buy",
    heading: "How to buy here",
    lead: "Your wallet signs and pays for orders on your machine. Only the provider that an order names can read it.",
    async read() {
      return [...(await models()).values()].filter((one) => one.svc.enabled);
    },
    show(catalogue, about) {
      const model = catalogue.find((one) => /responses|chat/.test(one.svc.endpoint ?? "")) ?? catalogue[0] ?? null;
      if (model === null) return h("p", { class: "empty" }, "No model can be ordered yet. The market’s admin adds models.");
      const market = address("/").href.replace(/\/$/, "");
      const window = windowName(about.windows ?? []);
      const token = about.token_domain.name;
      return [
        h("h2", {}, "1. A wallet for this market"),
        h("p", {}, "Install ", h("code", {}, "svc"), " from a checkout of the project with ", h("code", {}, "pip install '.[client,serve]'"), ". Then create a key, and send ", token, " to the address that the last line prints."),
        lines("Set-up", `svc keygen --out wallet.key\nsvc config set base_url ${market}\nsvc config set wallet_key_file "$PWD/wallet.key"\nsvc address\n`),
        h("p", { class: "faint" }, "To verify claims and payments on the chain instead of trusting this coordinator, add ", h("code", {}, "svc config set rpc_url URL"), ` with a node of chain ${about.chain_id}.`),
        h("h2", {}, "2. An order"),
        lines("Command line", `svc quote ${shell(model.id)} "Why is the sky blue?" --window ${window}\nsvc run ${shell(model.id)} "Why is the sky blue?" --window ${window}\n`),
        lines("Python", `from svc import SyncClient\n\nwith SyncClient(${JSON.stringify(market)}) as client:\n    result = client.run(${JSON.stringify(model.id)}, "Why is the sky blue?", window="${window}")\n    print(result.output, result.cost)\n`),
        h("h2", {}, "3. Any OpenAI client"),
        h("p", {}, h("code", {}, "svc serve"), " runs a server with OpenAI’s API on your machine. The server buys from this market within budgets, and prints the path of its key file."),
        lines("Server", "svc serve\n"),
        lines("OpenAI client", `import pathlib\nfrom openai import OpenAI\n\nkey = pathlib.Path("~/.config/svc/serve/serve.key").expanduser().read_text().strip()\nclient = OpenAI(base_url="http://127.0.0.1:8403/v1", api_key=key)\nquestion = [{"role": "user", "content": "Why is the sky blue?"}]\nprint(client.chat.completions.create(model=${JSON.stringify(model.id)}, messages=question).choices[0].message.content)\n`),
      ];
    },
  };
}

// The shortest window of an hour or more, as svc writes windows.
function windowName(windows) {
  const seconds = windows.find((each) => Number(each) >= 3600) ?? windows.at(-1) ?? 3600;
  const [size, unit] = [[3600, "h"], [60, "m"], [1, "s"]].find(([size]) => seconds % size === 0);
  return `${seconds / size}${unit}`;
}

// Quote a name for a shell, because a catalogue's names may contain any characters.
function shell(name) {
  return /^[\w./:@-]+$/.test(name) ? name : `'${name.replaceAll("'", `'\\''`)}'`;
}
