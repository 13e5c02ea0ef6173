"""Example values for the API, from the worked order in `docs/protocol/vectors.md`. A test compares these
values with that page.
"""

from typing import Final

TX_HASH: Final = "0x9c1f0b7c4a53e2b1d8f6a7095e3c2d41b8a7f60594e3d2c1b0a99887766554f3"
OWNER: Final = "0x19e7e376e7c213b7e7e7e46cc70a5dd086daff2a"
JOB_ID: Final = "0x7c5ae8bce03b96e38f40acb33c05e70769be307bf4d17f091e074ba41d4c6b2e"
COMMITMENT: Final = "0x02c9eadcd5728ec0189e3ec798e6c36079d61388e13bc739c445dafc1ff64648"
BOX_KEY: Final = "0x0faa684ed28867b97f4a6a2dee5df8ce974e76b7018e3f22a1c4cf2678570f20"
ORDER_HASH: Final = "0x805ce8735615330617e53234742fa20039e8340e5523777ae3248281d1966457"
ORDER_SIGNATURE: Final = (
    "0xfbed051b49aa7e21f21c563a807383e911edb1cb582d1ab7f5e87f697aecb55057c413dc9dc3f7d197c1af46514f201ee09891ff6b249192"
    "ed48ea6ff3fc75e51b"
)
# Placeholder for signatures that are not part of this order.
ANY_SIGNATURE: Final = "0x" + "11" * 64 + "1b"
SETTLE_SIGNATURE: Final = (
    "0x3a51b6f7c9b9305a6e89090d3764565cb48c780a6b0b0727d6ec13be8952f29345ac3cc8ce54daba2e2f2551c51489c3f6fcf7b7516798137d"
    "328a35888c82971b"
)
PAYMENT_SIGNATURE: Final = (
    "0xd729f8054f567569e86d522a353168e118745f199e3214d7b6be249798b7618816c3cedbc106efd34b74ee6a572dc1716284b29634ea3e5e85"
    "e2e71f6cb0f9e41c"
)
CONTAINER: Final = (
    "Af8u5FYB7BtnMQx3kEBFha5pczHu4cH4zyQZcxwf/z5rf3KrkUuoUVCWNBUMtmKMsHI9KjPxpkqTEQPIzZ7lSWGI8omZxNAIi+JSi6LBmkFCVVVV"
    "VVVVVVVVVVVVVVVVVVVVVVVVVVVVa47s5euVS5T6BUt/CktNPQk9fzch8hRfC9T24Jolxz/0P7/fhVesngff0GwLvddRY5jX/VK47A0s5uqzoHA+"
    "ig+bZXsL6pjy19ziE4ZiyqNFx2DYn2kniKfDDjrO0J5a6KimibROR3y+ZhMW40BLWSP+q0T8UeuSKDLLA/cLzkP4PxvY21Q4/70pfNExwhKN7HBX"
    "PNN0KOdRfkzeMqR7SENgE2/+rhLfxDxLToapzr3Oxopo6rb5Lo7sHJeRS+rYontAsFUTq9NU8YBo7belttkFJ/YeKvF0uRHtX80qEM8QyTp2wKuO"
    "8v3obw=="
)
SEED_WRAP: Final = (
    "/y7kVgHsG2cxDHeQQEWFrmlzMe7hwfjPJBlzHB//Pmt/cquRS6hRUJY0FQy2Yoywcj0qM/GmSpMRA8jNnuVJYYjyiZnE0AiL4lKLosGaQUI="
)
RESULT: Final = (
    "ARz1eaukWhC6HR7wbZH8oqqe0KEVBRVlMVVAXQsYy5pnoPEcxAvTfP81XWsI/L8r6mopSekLqCqv+s++30DAmRKUrC/WCBhjXH1VRJfTWv5biIiI"
    "iIiIiIiIiIiIiIiIiIiIiIiIiIiIAgGQ0EjkxqhDyUJzH7oSr2WscTYhcx9GjzhwKgZlyFvm094ybBUmrfN3m+UE1DelFYyKtvmEapBm+HR85Fsy"
    "L3lVHpzBP0mz7I9YGVun8WvgTrwGB9NOqxSApQZckgXhAhvPu1s5qsP6ebAshYPAdioncy/F65cWUeB1pKru/VgY0+Ky/o1jaSZr3JI9Ld7UrCdp"
    "jtJ+UNWSS5H6POLBQ9wt36vu0vkIwegpMD4gyWS5vUeEHQTBjTPusA=="
)
RESULT_CID: Final = "bafkreiflzz6tuyjy7rx2w6rq6r2kqwoiu5a55sp7plbebdgbezwf6ql6le"
TASK_CID: Final = "bafkreifjsvx435djczuwgrvpohr3yot4sreefrli6othmvhwam6lvruzme"
FILE_ID: Final = "file-0123456789abcdef01234567"
BATCH_ID: Final = "batch_0123456789abcdef01234567"
