"""A node of a chain that agrees with the fake coordinator's market, except where a test changes it."""

from collections.abc import Mapping
from typing import Any

import attrs

from common import abi
from common.api.chain import reported_book
from common.artifacts import Artifact, event_topic, load_artifact, selector
from common.keccak import keccak256
from common.messages.payments import job_payment
from common.quotes import FeeTerms
from common.scalars import hex_of
from svc.core.market import VerifiedMarket
from svc.core.orders import SealedOrder
from svc.records import Contracts, Deployment, TokenName
from tests.unit.svc.fake_coordinator import BOX_SECRET, DEPLOYMENT, FEE_BPS, GAS_FEE, WALLET, Answer, Asked

NODE = "https://node.example"
OTHER_NODE = "https://other.example"
JOBS, PROVIDERS = load_artifact("JobRegistry"), load_artifact("ProviderRegistry")
TOLD = reported_book(
    Deployment(
        31337,
        Contracts(**DEPLOYMENT["contracts"]),  # type: ignore[arg-type] # a nested object
        6,
        TokenName("Dev Dollar", "1"),
        1,
        5,
        500,
        FEE_BPS,
    )
)
_DOMAINS = VerifiedMarket.of(TOLD).domains
_SIGNED = (_DOMAINS.jobs, _DOMAINS.providers, _DOMAINS.asks, _DOMAINS.token)


@attrs.define
class FakeNode:
    """`provider`: the registry's row of every provider. `refused_logs`: block range above which a log query fails."""

    chain_id: int = 31337
    head: int = 900
    block_time: int = 1_000_000
    no_code: bytes | None = None
    has_code: bytes | None = None
    separators: dict[bytes, bytes] = attrs.field(
        factory=lambda: {each.domain.verifying_contract or b"": each.separator for each in _SIGNED}
    )
    token: bytes = TOLD.paytoken
    registry: bytes = TOLD.provider_registry
    decimals: int = 6
    balance: int = 5_000_000
    fees: FeeTerms = FeeTerms(FEE_BPS, GAS_FEE)
    model: str = "demo/text"
    enabled: bool = True
    windows: tuple[int, ...] = (3_600, 86_400)
    provider: dict[str, Any] = attrs.field(
        factory=lambda: {"operator": b"\x77" * 20, "boxKey": BOX_SECRET.public.raw, "listed": True}
    )
    logs: list[dict[str, Any]] = attrs.field(factory=list)
    refused_logs: int = 1 << 60
    asked: list[str] = attrs.field(factory=list)

    def __call__(self, asked: Asked) -> Answer:
        method, params = asked.body["method"], asked.body["params"]
        self.asked.append(method)
        result: Any
        if method == "eth_chainId":
            result = hex(self.chain_id)
        elif method == "eth_blockNumber":
            result = hex(self.head)
        elif method == "eth_getBlockByNumber":
            result = {"timestamp": hex(self.block_time)}
        elif method == "eth_getCode":
            result = self._code(bytes.fromhex(params[0][2:]))
        elif method == "eth_getLogs":
            wanted = params[0]
            if int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) >= self.refused_logs:
                return Answer(200, {"error": {"code": -32005, "message": "block range too wide"}})
            result = self._logs(wanted)
        else:
            assert method == "eth_call"
            to, data = (bytes.fromhex(params[0][name][2:]) for name in ("to", "data"))
            result = hex_of(self._call(to, data))
        return Answer(200, {"jsonrpc": "2.0", "id": 1, "result": result})

    def post(self, sealed: SealedOrder, block: int, **changed: Any) -> None:
        """Record that the registry accepted this order."""
        order = sealed.order
        values = {
            **{"jobId": sealed.job_id, "owner": sealed.owner, "modelId": order.model_id, "c": order.c},
            **{"slaSecs": order.sla_secs, "rateIn": order.rate_in, "rateOut": order.rate_out},
            **{"unitsIn": order.units_in, "unitsOut": order.units_out, "designated": order.designated},
            **{"expiresAt": order.expires_at, "feeBps": FEE_BPS, "gasFee": GAS_FEE, "taskCid": "bafytask"},
            **{"paySig": bytes(65)},
        }
        self.emit("JobPosted", block, values | changed)

    def emit(self, event: str, block: int, values: Mapping[str, Any]) -> None:
        fields = _entry(JOBS, "event", event)["inputs"]
        topics = [event_topic(JOBS, event)]
        topics += [abi.encode(_word(each["type"], values[each["name"]])) for each in fields if each["indexed"]]
        data = abi.encode(*(_word(each["type"], values[each["name"]]) for each in fields if not each["indexed"]))
        self.logs.append(
            {
                "address": hex_of(TOLD.job_registry),
                "topics": [hex_of(topic) for topic in topics],
                "data": hex_of(data),
                "blockNumber": hex(block),
                "blockHash": "0x" + f"{block:064x}",
                "transactionHash": "0x" + "ee" * 32,
                "logIndex": hex(len(self.logs)),
            }
        )

    def _code(self, address: bytes) -> str:
        there = (address in self.separators and address != self.no_code) or address == self.has_code
        return "0x60" if there else "0x"

    def _logs(self, wanted: dict[str, Any]) -> list[dict[str, Any]]:
        self_made = self._model_set() if wanted["topics"][0] == hex_of(event_topic(JOBS, "ModelSet")) else self.logs
        first, last = int(wanted["fromBlock"], 16), int(wanted["toBlock"], 16)
        return [
            log
            for log in self_made
            if first <= int(log["blockNumber"], 16) <= last
            and all(topic in (None, log["topics"][at]) for at, topic in enumerate(wanted["topics"]))
        ]

    def _model_set(self) -> list[dict[str, Any]]:
        node = FakeNode()
        values = {"modelId": 1, "name": self.model, "enabled": True, "ownedBy": "demo", "paramsSchema": ""}
        node.emit("ModelSet", 3, values)
        return node.logs

    def _call(self, to: bytes, data: bytes) -> bytes:
        known = {
            keccak256(b"DOMAIN_SEPARATOR()")[:4]: self.separators.get(to, b""),
            keccak256(b"decimals()")[:4]: abi.uint(self.decimals),
            keccak256(b"balanceOf(address)")[:4]: abi.uint(self.balance),
            selector(JOBS, "token"): abi.address(self.token),
            selector(JOBS, "providers"): abi.address(self.registry),
            selector(JOBS, "fees"): abi.encode(abi.uint(self.fees.fee_bps), abi.uint(self.fees.gas_fee)),
            selector(JOBS, "modelEnabled"): abi.boolean(self.enabled),
            selector(JOBS, "slaAllowed"): abi.boolean(int.from_bytes(data[4:], "big") in self.windows),
            selector(PROVIDERS, "provider"): self._provider(),
        }
        return bytes(known[data[:4]])

    def _provider(self) -> bytes:
        (struct,) = _entry(PROVIDERS, "function", "provider")["outputs"]
        return abi.encode(*(_word(each["type"], self.provider.get(each["name"], 0)) for each in struct["components"]))


def paid(sealed: SealedOrder, amount: int) -> bytes:
    """Return the payment's signature, as the fake coordinator's client makes it."""
    order = sealed.order
    payment = job_payment(sealed.owner, TOLD.job_registry, amount, order.expires_at, sealed.job_id)
    return WALLET.sign(_DOMAINS.token.digest(payment))


def _entry(artifact: Artifact, kind: str, name: str) -> Mapping[str, Any]:
    (entry,) = (each for each in artifact.abi if each["type"] == kind and each["name"] == name)
    return entry


def _word(kind: str, value: Any) -> abi.Words | abi.Tail:
    if kind == "address":
        return abi.address(value or bytes(20))
    if kind == "bool":
        return abi.boolean(bool(value))
    if kind == "bytes32":
        return abi.bytes32(value or bytes(32))
    if kind == "string":
        return abi.dynamic_string(value)
    if kind == "bytes":
        return abi.dynamic_bytes(value)
    return abi.uint(value)
