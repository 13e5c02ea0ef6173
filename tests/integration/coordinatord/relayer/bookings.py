"""Gas booked without a relayer, for tests of budgets."""

from typing import Final

# Books the gas of a post: signer, gas, hours ago.
BOOK: Final = (
    "with tx as (insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, lost)"
    " select 0, 'booked', count(*), '', '', 0, 'foreign', true from relay_txs returning id)"
    " insert into gas_bookings (tx_id, signer, kind, newcomer, hour, gas)"
    " select id, $1::bytea, 'post', false, current_hour() - $3::integer, $2::bigint from tx"
)
