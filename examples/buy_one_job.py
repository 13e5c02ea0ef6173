"""Buy one answer. The order is sealed to the provider, paid on the chain, and its unused part is refunded."""

from svc import SyncClient

with SyncClient() as client:
    result = client.run(
        "demo/text-small",
        {"input": "What is the capital of Japan?", "max_output_tokens": 64},
        window="1h",
        max_amount=100_000,  # the most that may be authorised, in base units of the payment token
        final=True,  # return after the block of the settlement
    )
    token = client.chain()
    print(result.text)
    print(f"{result.usage['output_tokens']} tokens from provider {result.job.svc.provider_id}")
    print(f"paid {result.cost / 10**token.decimals:f} {token.token_domain.name}")
