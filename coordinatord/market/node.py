"""Connect `coordinatord market` to a node through web3, with retries and with this package's errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

import attrs
import requests
from eth_typing import HexStr
from hexbytes import HexBytes
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential
from web3 import HTTPProvider, Web3
from web3.exceptions import BlockNotFound, TransactionNotFound
from web3.types import BlockIdentifier, RPCEndpoint, RPCResponse, TxParams, TxReceipt

from common.daemon.process import Fatal
from coordinatord.base.errors import Retryable
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind, classify_error

_REQUEST_TIMEOUT_S: Final = 30.0
_MAX_ATTEMPTS: Final = 5
_FIRST_RETRY_PAUSE_S: Final = 0.25
_TRANSIENT_STATUSES: Final = (429, 500, 502, 503, 504)


@attrs.frozen(slots=True)
class _NoAnswer(Exception):
    """Error for a node that sent no JSON-RPC answer. `transient` is True if another attempt may succeed."""

    reason: str
    transient: bool


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, RpcError):
        return error.kind is RpcErrorKind.RATE_LIMITED
    return isinstance(error, _NoAnswer) and error.transient


class RetryingProvider(HTTPProvider):
    """Provider that raises Retryable when the node does not answer, and RpcError when the node answers with an error.

    web3 therefore never sees an error. web3 recognises fewer error messages of nodes than this package, and would
    fetch any URL that a contract names in a revert with OffchainLookup.
    """

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        try:
            return self._call_with_retries(method, params)
        except _NoAnswer as failure:
            # Name only host and port, because the rest of the address may hold a key.
            host = urlsplit(str(self.endpoint_uri)).netloc.rpartition("@")[2]
            raise Retryable(
                "chain_unreachable",
                f"the node at {host} does not answer ({failure.reason}): try again, or use another node",
            ) from None

    @retry(
        retry=retry_if_exception(_is_transient),
        stop=stop_after_attempt(_MAX_ATTEMPTS),
        wait=wait_exponential(_FIRST_RETRY_PAUSE_S),
        reraise=True,
    )
    def _call_with_retries(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        answer: Any = self._post(method, params)
        if not isinstance(answer, Mapping) or ("error" not in answer and "result" not in answer):
            raise _NoAnswer("the body is not a JSON-RPC answer", transient=False)
        error = answer.get("error")
        if error is not None:
            raise classify_error(error if isinstance(error, Mapping) else {"message": error})
        return cast("RPCResponse", answer)

    def _post(self, method: RPCEndpoint, params: Any) -> Any:
        try:
            return super().make_request(method, params)
        except requests.HTTPError as refusal:
            response = refusal.response
            if _has_error(response):
                return response.json()
            raise _NoAnswer(f"HTTP {response.status_code}", response.status_code in _TRANSIENT_STATUSES) from None
        except requests.RequestException as failure:
            raise _NoAnswer(type(failure).__name__, transient=True) from None
        except ValueError:
            raise _NoAnswer("the body is not JSON", transient=False) from None


def _has_error(response: requests.Response) -> bool:
    """Return True if the body has a JSON-RPC error. Some nodes send JSON-RPC errors with HTTP status 400 or 500."""
    try:
        answer = response.json()
    except ValueError:
        return False
    return isinstance(answer, Mapping) and answer.get("error") is not None


@contextmanager
def connect(rpc_url: str) -> Iterator[Web3]:
    """Connect to a node over HTTP. Raise Fatal for any other address."""
    if urlsplit(rpc_url).scheme not in ("http", "https") or not urlsplit(rpc_url).hostname:
        raise Fatal("the RPC endpoint must be an http:// or https:// address")
    with requests.Session() as session:
        yield build_web3(session, rpc_url)


def build_web3(session: requests.Session, rpc_url: str) -> Web3:
    provider = RetryingProvider(
        rpc_url, {"timeout": _REQUEST_TIMEOUT_S}, session=session, exception_retry_configuration=None
    )
    # Use no middleware: web3's default middleware resolves ENS names and rejects the blocks of some chains.
    return Web3(provider, middleware=[])


def genesis_hash(node: Web3) -> str:
    """Return the hash of block 0, or an empty string for a node that has pruned block 0."""
    try:
        return node.eth.get_block(0)["hash"].to_0x_hex()
    except BlockNotFound:
        return ""


def read_code(node: Web3, address: str) -> bytes:
    return node.eth.get_code(Web3.to_checksum_address(address))


def read_balance(node: Web3, account: str) -> int:
    return node.eth.get_balance(Web3.to_checksum_address(account))


def read_nonce(node: Web3, account: str, block: BlockIdentifier) -> int:
    return node.eth.get_transaction_count(Web3.to_checksum_address(account), block)


def eth_call(node: Web3, to: str, data: bytes, sender: str | None = None) -> bytes:
    transaction: TxParams = {"to": to, "data": HexBytes(data)}
    return node.eth.call(transaction if sender is None else {**transaction, "from": sender})


def broadcast(node: Web3, raw: bytes) -> None:
    """Send signed bytes. Raise no error if the node already has the transaction."""
    try:
        node.eth.send_raw_transaction(HexBytes(raw))
    except RpcError as error:
        if error.kind is not RpcErrorKind.ALREADY_KNOWN:
            raise


def read_receipt(node: Web3, transaction_hash: str) -> TxReceipt | None:
    """Return the receipt of a transaction, or None if the transaction is not mined. Ignore a receipt without a block,
    which some nodes send for a pending transaction."""
    try:
        receipt = node.eth.get_transaction_receipt(HexStr(transaction_hash))
    except TransactionNotFound:
        return None
    return receipt if receipt["blockNumber"] is not None else None
