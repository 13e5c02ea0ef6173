"""The smallest environment that configures a coordinator."""

from typing import Final

_BOOK: Final = (
    '{"chainId":31337,"deployBlock":1,"jobRegistry":"0x' + "11" * 20 + '","providerRegistry":"0x' + "22" * 20 + '",'
    '"askRegistry":"0x' + "33" * 20 + '","paytoken":"0x' + "44" * 20 + '","paymentTokenDecimals":6,'
    '"tokenDomain":{"name":"Dev Dollar","version":"1"}}'
)

ENVIRONMENT: Final = {
    "ADDRESSES_JSON": _BOOK,
    "DATABASE_URL": "postgresql://nowhere.invalid/none",
    "RELAYER_KEY": "0x" + "01" * 32,
    "PIN_STORE_ENDPOINT": "http://127.0.0.1:1",
    "PIN_STORE_KEY": "key",
    "PIN_STORE_SECRET": "secret",
    "PIN_STORE_BUCKET": "bucket",
}
