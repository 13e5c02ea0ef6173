"""Print a market's state for its operator, and exit with 1 if it needs attention. Suits cron or a chat bot."""

import os
import sys

import httpx
from prometheus_client.parser import text_string_to_metric_families

COORDINATOR = os.environ["SVC_BASE_URL"]
METRICS = os.environ.get("METRICS_URL", "http://127.0.0.1:9402/metrics")
LOW_BALANCE_WEI = 10**17

problems = []
with httpx.Client(base_url=COORDINATOR) as api:
    ready = api.get("/readyz").json()
    counts = api.get("/evm/jobs/counts").raise_for_status().json()
    providers = api.get("/evm/providers").raise_for_status().json()["providers"]
    metrics = api.get(METRICS).raise_for_status().text

samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
balances = [(each.labels["account"], each.value) for each in samples if each.name == "coordinatord_relayer_balance_wei"]
failures = {each.labels["task"]: int(each.value) for each in samples if each.name == "coordinatord_task_failures_total"}

print(f"ready: {ready['ready']} at block {ready['cursor']}")
print("jobs: " + ", ".join(f"{counts[state]} {state}" for state in ("open", "claimed", "settled", "cancelled")))
for each in providers:
    done = each["reliability"] or {"settled": 0, "failed": 0}
    print(f"provider {each['provider_id']}: {done['settled']} settled and {done['failed']} failed in seven days")
for account, wei in balances:
    print(f"relayer {account[:10]}: {wei / 10**18:.4f} ether")

if not ready["ready"]:
    problems.append(f"not ready: {ready['reason']}")
problems += [f"relayer {account[:10]} needs funds" for account, wei in balances if wei < LOW_BALANCE_WEI]
problems += [f"task {task} failed {count} times" for task, count in failures.items() if count]
print("\n".join(problems) or "no problems")
sys.exit(1 if problems else 0)
