"""Settings of the chain's nodes, of the relayer's account and of the relayer's transactions."""

import attrs

from common.daemon.secrets import Secret
from common.refusal import Refused
from common.settings.kinds import integer, list_of, text, url
from common.settings.reader import setting
from coordinatord.run.kinds import account, private_key, secret, secret_url


@attrs.frozen(slots=True, kw_only=True)
class ChainConfig:
    relayer_key: Secret | None = setting(
        private_key, "private key of the account that signs and pays relayed transactions", None, secret=True
    )
    relayer_keystore: str | None = setting(
        text, "encrypted keystore file with the relayer's key, instead of RELAYER_KEY", None
    )
    relayer_keystore_password: Secret | None = setting(secret, "password of RELAYER_KEYSTORE", None, secret=True)
    relayer_signer_url: Secret | None = setting(
        secret_url,
        "HTTP signer with eth_signTransaction, such as Web3Signer, instead of RELAYER_KEY",
        None,
        secret=True,
    )
    relayer_signer_command: str | None = setting(
        text, "program that signs: a transaction as JSON on stdin, signed hex on stdout, instead of RELAYER_KEY", None
    )
    relayer_account: str | None = setting(
        account, "address of the account that RELAYER_SIGNER_URL or RELAYER_SIGNER_COMMAND signs for", None
    )
    rpc_url: str = setting(url, "JSON-RPC endpoint, with its API key", "http://localhost:8545", secret=True)
    rpc_urls: tuple[str, ...] = setting(
        list_of(url), "further endpoints of the same chain, for failover and cross-checks", (), secret=True
    )
    getlogs_cap: int = setting(integer(1, 1_000_000), "highest number of blocks in one log query", 5000)
    block_time_ms: int = setting(
        integer(1, 3_600_000), "interval at which the index polls the node; readiness is cached for as long", 2000
    )
    relay_max_depth: int = setting(
        integer(1, 4096), "highest number of relays that wait to be broadcast; beyond it, 503 relay_queue_full", 32
    )
    relay_queue_timeout_ms: int = setting(
        integer(1, 600_000), "longest wait of a relay for its broadcast; beyond it, 503 relay_queue_timeout", 10_000
    )
    relay_reserve_gas: int = setting(
        integer(0, 10**12),
        "reserve in gas; below it, only settles, fails, reclaims and cancels are relayed; below a third, no cancels",
        30_000_000,
    )
    relay_max_fee_gwei: int | None = setting(
        integer(1, 1_000_000_000), "highest fee per gas; unset: the built-in limit for this chain, if any", None
    )
    relay_max_tip_gwei: int | None = setting(
        integer(1, 1_000_000_000),
        "highest priority fee per gas; unset: the built-in limit for this chain, if any",
        None,
    )

    @property
    def node_urls(self) -> list[str]:
        """Endpoints of the chain, RPC_URL first."""
        return [self.rpc_url, *self.rpc_urls]

    def check_chain_settings(self) -> None:
        """Raise Refused for settings that contradict each other."""
        self._check_signer()
        if len(set(self.node_urls)) < len(self.node_urls):
            raise Refused(
                "must name each node once and must not contain RPC_URL, because a node cannot check itself", "rpc_urls"
            )

    def _check_signer(self) -> None:
        external_signers = {
            "relayer_signer_url": self.relayer_signer_url,
            "relayer_signer_command": self.relayer_signer_command,
        }
        signers = {"relayer_key": self.relayer_key, "relayer_keystore": self.relayer_keystore} | external_signers
        named = [name for name, value in signers.items() if value is not None]
        if not named:
            others = ", ".join(name.upper() for name in list(signers)[1:])
            raise Refused(f"is required, or one of {others} instead", "relayer_key")
        if len(named) > 1:
            raise Refused(f"and {named[1].upper()} must not both be set: the relayer has one account", named[0])
        if (named[0] in external_signers) != (self.relayer_account is not None):
            problem = "must be set with RELAYER_SIGNER_URL or RELAYER_SIGNER_COMMAND, and only with them"
            raise Refused(problem, "relayer_account")
        if self.relayer_keystore is not None and self.relayer_keystore_password is None:
            raise Refused("is required with RELAYER_KEYSTORE", "relayer_keystore_password")
