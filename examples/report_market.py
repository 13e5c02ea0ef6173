"""Print a market's state for its operator, and exit with 1 if it needs attention. Suits cron or a chat bot."""

import os
import sys
from collections import defaultdict

import httpx
from prometheus_client.parser import text_string_to_metric_families

COORDINATOR = os.environ["SVC_BASE_URL"]
METRICS = os.environ.get("METRICS_URL", "http://127.0.0.1:9402/metrics")

with httpx.Client(base_url=COORDINATOR) as api:
    ready = api.get("/readyz").json()
    counts = api.get("/evm/jobs/counts").raise_for_status().json()
    providers = api.get("/evm/providers").raise_for_status().json()["providers"]
    metrics = api.get(METRICS).raise_for_status().text

funds: dict[str, dict[str, float]] = defaultdict(dict)
problems = [] if ready["ready"] else [f"not ready: {ready['reason']}"]
for family in text_string_to_metric_families(metrics):
    for sample in family.samples:
        if sample.name == "coordinatord_relayer_funds_wei":
            funds[sample.labels["account"]][sample.labels["kind"]] = sample.value
        if sample.name == "coordinatord_task_failures_total" and sample.value:
            problems.append(f"task {sample.labels['task']} failed {sample.value:.0f} times")

print(f"ready: {ready['ready']} at block {ready['cursor']}")
print("jobs: " + ", ".join(f"{counts[state]} {state}" for state in ("open", "claimed", "settled", "cancelled")))
for each in providers:
    done = each["reliability"] or {"settled": 0, "failed": 0}
    print(f"provider {each['provider_id']}: {done['settled']} settled and {done['failed']} failed in seven days")
for account, wei in funds.items():
    print(f"relayer {account[:10]}: {wei['balance'] / 10**18:.4f} ether")
    if wei["balance"] < 2 * wei["reserve"]:
        problems.append(f"relayer {account[:10]} needs funds")

print("\n".join(problems) or "no problems")
sys.exit(1 if problems else 0)
