"""Offer a job to all providers at your price. Read why no provider accepts it, cancel it, and bid higher."""

from svc import SyncClient

MODEL = "demo/text-small"
QUESTION = {"input": "What is the capital of Peru?", "max_output_tokens": 32}

with SyncClient() as client:
    best = client.probe(MODEL, QUESTION, window="1h")[0]
    print(f"provider {best.provider_id} asks {best.rate_in} in, {best.rate_out} out per million units")

    low = client.prepare(MODEL, QUESTION, window="1h", rate_in=best.rate_in // 2, rate_out=best.rate_out // 2)
    client.submit(low, final=True)
    why = client.jobs.why(low.id)
    print(f"{low.id[:10]}: {why.said}")
    client.cancel(low.id)
    print(f"{low.id[:10]}: {client.jobs.get(low.id).status}")

    bid = client.prepare(MODEL, QUESTION, window="1h", rate_in=best.rate_in, rate_out=best.rate_out)
    quoted = client.quote(bid)
    print(f"{bid.id[:10]}: at most {quoted.quote.amount} base units, {len(quoted.candidates)} providers would take it")
    client.submit(bid, quoted)
    job = client.wait(bid.id, timeout=120)
    print(f"{bid.id[:10]}: {job.status} by provider {job.svc.provider_id}: {client.open(job).text}")
