"""POST /v1/jobs: from a body to a posted job.

Cheapest first: what the body alone decides, then signatures, then one request to the chain for all that it decides,
then the store, then the relay. The quote needs the order's signature and the fee terms, nothing else.
"""

from typing import Final, TypeAlias

import attrs
from anyio import to_thread

from common.artifacts import decode_error
from common.domains import Domains
from common.quotes import Quote, Terms
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.base.clock import Clock
from coordinatord.base.outcomes import WouldRefuse
from coordinatord.book.candidates_sql import Candidate
from coordinatord.chain.contract_calls import Reverted, View, is_true, read_many
from coordinatord.chain.registries import JobRegistry, read_balance
from coordinatord.chain.rpc import RpcCall
from coordinatord.files.files import Upload, Uploads
from coordinatord.orders.candidates import Market
from coordinatord.orders.checks import (
    MarketProbe,
    OrderBody,
    Paid,
    amount_of,
    check_inline,
    check_order_signer,
    check_payer,
    order_signer,
    post_calldata,
    quote_of,
    same_post,
    signers_of,
    wrong_terms,
)
from coordinatord.orders.containers import Containers, Holding, container_key
from coordinatord.relayer.budgets import Admitted, GasBudgets, Promises, insufficient
from coordinatord.relayer.outbox_sql import NewRelay, Priority, Promise, RelayKind
from coordinatord.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined

_LARGE: Final = 1 << 16  # hashing more than this is left to a thread
# Stands in for a content id while the chain is asked whether it would take the post at all.
_ANY_CID: Final = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"


@attrs.frozen(slots=True)
class Probed:
    candidates: list[Candidate]


@attrs.frozen(slots=True)
class Quoted:
    """A quote; `changed` when it answers a submission whose amount is not the current one."""

    order: OrderBody
    quote: Quote
    fee_bps: int
    candidates: list[Candidate]
    changed: bool


@attrs.frozen(slots=True)
class Posted:
    job_id: bytes
    task_cid: str
    tx_hash: bytes


Outcome: TypeAlias = Probed | Quoted | Posted | RefusedByChain | WouldRefuse | RelayBusy | NoReceipt


@attrs.frozen(slots=True)
class Submissions:
    domains: Domains
    registry: JobRegistry
    promises: Promises
    budgets: GasBudgets
    relayer: bytes
    market: Market
    containers: Containers
    uploads: Uploads
    relaying: Relaying
    clock: Clock

    async def submit(self, body: MarketProbe | OrderBody) -> Outcome:
        """Raises Refused for what the specification answers with 400, Retryable for trouble outside."""
        if isinstance(body, MarketProbe):
            return Probed(await self.market.probe(body))
        wrong = wrong_terms(body, self.clock())
        if wrong is not None:
            raise Refused(wrong.message, wrong.param)
        if body.auth_sig is None or body.amount is None:
            check_order_signer(body, order_signer(self.domains, body))
            return await self._quoted(body, await self.registry.fees(), changed=False)
        return await self._submit(Paid(body, body.auth_sig, body.amount))

    async def _quoted(self, body: OrderBody, terms: Terms, *, changed: bool) -> Quoted:
        return Quoted(body, quote_of(body, terms), terms.fee_bps, await self.market.matching(body), changed)

    async def _submit(self, paid: Paid) -> Outcome:
        body = paid.body
        [(signer, payer)] = signers_of(self.domains, self.registry.address, [paid])
        check_order_signer(body, signer)
        terms = await self.registry.fees()
        if paid.amount != amount_of(body, terms):
            return await self._quoted(body, terms, changed=True)
        check_payer(body, payer)
        admitted = await self.budgets.admit(RelayKind.POST, body.owner, body.job_id)
        upload = await self._check_container(body)
        balance = await self._check_chain(paid)
        if isinstance(balance, RefusedByChain):
            return balance
        promise = await self.promises.promise(admitted.standing, body.owner, paid.amount, balance)
        if promise is None and not await self.budgets.is_under_way(body.job_id):
            return insufficient()
        outcome = await self._post(paid, upload, admitted, promise)
        if isinstance(outcome, RefusedByChain) and outcome.name == "WrongAmount":
            return await self._quoted(body, await self.registry.fees(), changed=True)  # changed since we read it
        return outcome

    async def _check_container(self, body: OrderBody) -> Upload | None:
        """The upload that the submission names, or None when the container is inline."""
        if body.container_cid is not None:
            upload = await self.uploads.find_input(body.owner, body.container_cid)
            if upload is None:
                raise _unknown_container()
            if upload.commitment != body.c:
                raise Refused("the upload does not reproduce c", "container_cid", "commitment_mismatch")
            return upload
        container = body.container if body.container is not None else b""
        if len(container) > _LARGE:
            await to_thread.run_sync(check_inline, container, body.c)
        else:
            check_inline(container, body.c)
        return None

    async def _check_chain(self, paid: Paid) -> RefusedByChain | int | None:
        """Model, SLA and payer as the chain has them, and whether it would take the post: one request. The owner's
        balance when it would, as far as the token tells it."""
        body, registry = paid.body, self.registry
        views: list[View | RpcCall] = [
            registry.model_enabled_view(body.model_id),
            registry.sla_allowed_view(body.sla_secs),
            RpcCall("eth_getCode", (hex_of(body.owner), "latest")),
            registry.would_accept(post_calldata(paid, _ANY_CID), self.relayer),
            self.promises.token.balance_view(body.owner),
        ]
        model, sla, code, post, balance = await read_many(registry.rpc, views, "payer_code_read")
        if not is_true(model):
            raise Refused("model_id is not an enabled model", "model_id")
        if not is_true(sla):
            raise Refused("sla_secs is not an SLA that the chain allows", "sla_secs")
        if code != b"":
            raise Refused("owner has contract code; pay from an account without code", "owner", "payer_has_code")
        if isinstance(post, Reverted):
            return RefusedByChain(decode_error(post.data), post.data)
        return read_balance(balance)

    async def _post(self, paid: Paid, upload: Upload | None, admitted: Admitted, promise: Promise | None) -> Outcome:
        body = paid.body
        if upload is not None:
            if not await self.uploads.hold(upload, body.job_id):
                raise _unknown_container()
            outcome = await self._relay(paid, upload.cid, admitted, promise)
            if isinstance(outcome, Posted):
                await self.uploads.attach(upload)
        else:
            content = body.container if body.container is not None else b""
            async with self.containers.holding(
                container_key(body.job_id), body.job_id, content, body.owner, bounded=True
            ) as holding:
                outcome = await self._relay(paid, holding.cid, admitted, promise)
                _tell(holding, outcome)
        if isinstance(outcome, Posted):
            await self.market.picked(body)
        return outcome

    async def _relay(
        self, paid: Paid, task_cid: str, admitted: Admitted, promise: Promise | None
    ) -> Posted | RefusedByChain | RelayBusy | NoReceipt:
        body = paid.body
        outcome = await self.relaying.relay(
            NewRelay(
                kind=RelayKind.POST,
                subject=body.job_id,
                dedupe=same_post(paid, task_cid),
                target=self.registry.address,
                calldata=post_calldata(paid, task_cid),
                priority=Priority.POST,
                signer=body.owner,
                gas_estimate=admitted.spending.estimate,
                spending=admitted.spending,
                promise=promise,
            )
        )
        return Posted(body.job_id, task_cid, outcome.tx_hash) if isinstance(outcome, RelayMined) else outcome


def _unknown_container() -> Refused:
    return Refused("container_cid names no live upload of the owner", "container_cid", "unknown_container")


def _tell(holding: Holding, outcome: Outcome) -> None:
    if isinstance(outcome, Posted):
        holding.took_effect()
    elif isinstance(outcome, RefusedByChain):
        holding.was_refused()
