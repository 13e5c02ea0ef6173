import pytest

from coordinatord import app
from coordinatord.config import read_config
from coordinatord.trouble import Fatal

BOOK = (
    '{"chainId":31337,"deployBlock":1,"jobRegistry":"0x' + "11" * 20 + '","providerRegistry":"0x' + "22" * 20 + '",'
    '"askRegistry":"0x' + "33" * 20 + '","paytoken":"0x' + "44" * 20 + '","paymentTokenDecimals":6,'
    '"tokenDomain":{"name":"Dev Dollar","version":"1"}}'
)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["mock"])
async def test_escrow_mode_that_this_version_does_not_host_stops_the_boot(mode: str) -> None:
    config = read_config(
        {
            "ADDRESSES_JSON": BOOK,
            "DATABASE_URL": "postgresql://nowhere.invalid/none",
            "RELAYER_KEY": "0x" + "01" * 32,
            "OPERATOR_KEY": "0x" + "02" * 32,
            "ESCROW_MODE": mode,
            "PIN_STORE_ENDPOINT": "http://127.0.0.1:1",
            "PIN_STORE_KEY": "key",
            "PIN_STORE_SECRET": "secret",
            "PIN_STORE_BUCKET": "bucket",
        }
    )
    with pytest.raises(Fatal, match=f"ESCROW_MODE={mode}"):
        await app.run(config)
