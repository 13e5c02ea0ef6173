"""Settings of the chain's nodes, of the relayer's account and of its transactions: a part of the configuration."""

import attrs

from common.daemon.process import Fatal
from common.daemon.secrets import Secret
from coordinatord.run.environment import (
    account,
    choice,
    integer,
    private_key,
    secret,
    secret_url,
    secret_urls,
    text,
    variable,
)


@attrs.frozen(slots=True, kw_only=True)
class ChainConfig:
    relayer_key: Secret | None = variable(
        "RELAYER_KEY",
        private_key,
        "private key of the account that signs and pays relayed transactions",
        None,
        secret=True,
    )
    relayer_keystore: str | None = variable(
        "RELAYER_KEYSTORE", text, "encrypted keystore file of that key, in place of RELAYER_KEY", None
    )
    relayer_keystore_password: Secret | None = variable(
        "RELAYER_KEYSTORE_PASSWORD", secret, "its password", None, secret=True
    )
    relayer_keystore_password_file: str | None = variable(
        "RELAYER_KEYSTORE_PASSWORD_FILE", text, "file with its password, in place of RELAYER_KEYSTORE_PASSWORD", None
    )
    relayer_signer_url: Secret | None = variable(
        "RELAYER_SIGNER_URL",
        secret_url,
        "HTTP signer that answers eth_signTransaction, as Web3Signer does, in place of RELAYER_KEY",
        None,
        secret=True,
    )
    relayer_signer_command: str | None = variable(
        "RELAYER_SIGNER_COMMAND",
        text,
        "program that signs: a transaction as JSON on stdin, signed bytes in hex on stdout, in place of RELAYER_KEY",
        None,
    )
    relayer_account: str | None = variable(
        "RELAYER_ACCOUNT", account, "account that the HTTP signer or the program signs as", None
    )
    relayer_signer_timeout_s: int = variable(
        "RELAYER_SIGNER_TIMEOUT_S", integer(1, 60), "longest wait for one signature of either", 5
    )
    rpc_url: Secret = variable(
        "RPC_URL",
        secret_url,
        "JSON-RPC endpoint, with the key in it that a hosted one wants (default http://localhost:8545)",
        Secret("http://localhost:8545"),
        secret=True,
    )
    rpc_urls: tuple[Secret, ...] = variable(
        "RPC_URLS",
        secret_urls,
        "further JSON-RPC endpoints of the same chain, comma-separated, beside RPC_URL: failover and cross-checks",
        (),
        secret=True,
    )
    rpc_lag_blocks: int = variable(
        "RPC_LAG_BLOCKS",
        integer(1, 10_000),
        "blocks that one of several nodes may be away from the others' head before it is not asked",
        5,
    )
    getlogs_cap: int = variable("GETLOGS_CAP", integer(1, 1_000_000), "widest block range per log query", 5000)
    block_time_ms: int = variable(
        "BLOCK_TIME_MS", integer(1, 3_600_000), "indexer poll interval and readiness cache time", 2000
    )
    relay_max_depth: int = variable(
        "RELAY_MAX_DEPTH", integer(1, 4096), "relays waiting to be broadcast; beyond it 503 relay_queue_full", 32
    )
    relay_queue_timeout_ms: int = variable(
        "RELAY_QUEUE_TIMEOUT_MS",
        integer(1, 600_000),
        "longest wait in that queue; beyond it relay_queue_timeout",
        10000,
    )
    relay_coalesce_max: int = variable(
        "RELAY_COALESCE_MAX", integer(1, 500), "ops in one relay(bytes[]) transaction at most", 64
    )
    relay_chains: str = variable(
        "RELAY_CHAINS",
        choice("on", "off"),
        "ops of one job share a block, each simulated on top of those before it; off, each waits until those are mined",
        "on",
    )
    relay_max_tx_gas: int = variable(
        "RELAY_MAX_TX_GAS",
        integer(2_000_000, 16_777_216),
        "gas of one transaction at most; never above half a block",
        16_777_216,
    )
    relay_reserve_gas: int = variable(
        "RELAY_RESERVE_GAS",
        integer(0, 10**12),
        "with native funds for less gas than this, only settles, fails, reclaims and cancels are relayed",
        30_000_000,
    )
    relay_cancel_reserve_gas: int = variable(
        "RELAY_CANCEL_RESERVE_GAS",
        integer(0, 10**12),
        "with native funds for less gas than this, cancels stop, too; not above RELAY_RESERVE_GAS",
        10_000_000,
    )
    relay_max_fee_gwei: int | None = variable(
        "RELAY_MAX_FEE_GWEI",
        integer(1, 1_000_000_000),
        "most offered per gas; unset, what suits the chain id, and no limit on an unknown chain",
        None,
    )
    relay_max_tip_gwei: int | None = variable(
        "RELAY_MAX_TIP_GWEI",
        integer(1, 1_000_000_000),
        "most of it offered to the block's producer; a first offer gives half; unset, as above",
        None,
    )

    @property
    def node_urls(self) -> list[str]:
        """Endpoints of the chain, RPC_URL first."""
        return [url.reveal() for url in (self.rpc_url, *self.rpc_urls)]


def check_chain_settings(config: ChainConfig) -> None:
    """Fatal, naming the variables that do not go together."""
    _check_signer(config)
    if len(set(config.node_urls)) < len(config.node_urls):
        raise Fatal("RPC_URLS must name each node once, and not RPC_URL again: a node cannot check itself")
    if config.relay_cancel_reserve_gas > config.relay_reserve_gas:
        raise Fatal("RELAY_CANCEL_RESERVE_GAS must not be above RELAY_RESERVE_GAS")


def _check_signer(config: ChainConfig) -> None:
    outside = {
        "RELAYER_SIGNER_URL": config.relayer_signer_url,
        "RELAYER_SIGNER_COMMAND": config.relayer_signer_command,
    }
    ways = {"RELAYER_KEY": config.relayer_key, "RELAYER_KEYSTORE": config.relayer_keystore} | outside
    named = [name for name, value in ways.items() if value is not None]
    if not named:
        raise Fatal(f"RELAYER_KEY is required, or one in its place: {', '.join(list(ways)[1:])}")
    if len(named) > 1:
        raise Fatal(f"{named[0]} and {named[1]} must not both be set: the relayer has one account")
    if (named[0] in outside) != (config.relayer_account is not None):
        raise Fatal("RELAYER_ACCOUNT must be set with RELAYER_SIGNER_URL or RELAYER_SIGNER_COMMAND, and only with them")
