"""Buy many answers with one file, and read them in the order of its lines."""

from svc import SyncClient

COUNTRIES = ["Japan", "Peru", "Norway"]
MODEL = "demo/text-small"

lines = [
    {
        "custom_id": country,
        "body": {"model": MODEL, "input": f"What is the capital of {country}?", "max_output_tokens": 32},
    }
    for country in COUNTRIES
]

with SyncClient() as client:
    prepared = client.batches.prepare(lines, window="1h", max_amount=100_000)
    batch = client.batches.create(prepared, metadata={"run": "capitals"})
    batch = client.batches.wait(batch.id)
    print(batch.id, batch.status)
    # The ids are sealed like the inputs. Only the buyer can restore them.
    for line in client.batches.results(batch, custom_ids=prepared.custom_ids):
        print(f"{line.custom_id}: {line.result.text if line.result else line.error.code}")
