"""The coordinator's routes, as a provider uses them.

Reads give values and raise `Unavailable` when they do not come through. Ops give an outcome for every way they can end.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, BinaryIO, Final

import attrs

from common.address_book import AddressBook
from common.api import limits
from common.api.chain import DeploymentFields, told_book
from common.api.escrow import ReleasedShape
from common.api.files import FileFields
from common.api.market import AskShape, Floor, ModelDetails, ModelFields, ProviderFields
from common.api.shapes import read_shape
from common.quotes import FeeTerms
from common.refusal import Refused
from common.scalars import hex_of, read_base64, read_uint
from svcd.base.errors import Unavailable
from svcd.coordinator.op_signer import Body
from svcd.coordinator.outcomes import (
    ChainRefused,
    CoordinatorRefusal,
    OpMined,
    OpOutcome,
    OpPending,
    OpStored,
    ReleasedKey,
    ReleaseOutcome,
    Uploaded,
    UploadOutcome,
)
from svcd.coordinator.requests import CoordinatorReply, Requests, Unanswered
from svcd.coordinator.sessions import ProviderSession, ProviderSessions, SignInRefused
from svcd.journal.book_row import Job, PendingOffer

_LONGEST_SEALED_KEY: Final = 256
_WINDOWS: Final = "windows"
_NO_MORE: Final[Mapping[str, str]] = {}

# This provider as the registry has it, and what it asks for. Unknown members are ignored.
ProviderRecord = ProviderFields[int]
PostedAsk = AskShape[int]
_Deployment = DeploymentFields[int]
_Model = ModelFields[int]
_Floor = Floor[int]
Floors = dict[tuple[int, int], tuple[int, int]]  # rate_in and rate_out by model id and window


async def read_deployment(requests: Requests) -> AddressBook:
    """The chain and contracts that our signatures are bound to: there is no session before they are known.

    Raises common's Refused when malformed."""
    return told_book(read_shape(_Deployment, (await _ok(requests, "/evm/chain")).body))


@attrs.frozen(slots=True)
class MarketReads:
    """What anybody may ask a coordinator: no session, and no key."""

    requests: Requests

    async def models(self) -> dict[str, int]:
        """Return the ids of the enabled models, by name."""
        return {name: model.model_id for name, model in (await self.catalogue()).items()}

    async def catalogue(self) -> dict[str, ModelDetails[int]]:
        """Return the enabled models, by name."""
        rows = [read_shape(_Model, row) async for row in self._pages("/v1/models", "data", {})]
        return {row.id: row.svc for row in rows if row.svc.enabled}

    async def terms(self) -> FeeTerms:
        """The market's charges now."""
        told = (await _ok(self.requests, "/evm/chain")).fields
        return FeeTerms(read_uint(told.get("fee_bps"), 16, "fee_bps"), read_uint(told.get("gas_fee"), 128, "gas_fee"))

    async def gateway(self) -> str | None:
        """Address of a storage gateway, where the coordinator tells one."""
        told = (await _ok(self.requests, "/evm/chain")).fields.get("gateway_url")
        return told if isinstance(told, str) and told else None

    async def floors(self) -> Floors:
        """The lowest rates on the book."""
        rows = [read_shape(_Floor, row) async for row in self._pages("/evm/asks/floors", "floors", {})]
        return {(row.model_id, row.sla): (row.rate_in, row.rate_out) for row in rows}

    async def ended_by(self, provider_id: int) -> list[dict[str, object]]:
        """Rows of all jobs that this provider settled, failed or left, as the book has them."""
        rows: list[dict[str, object]] = []
        for state in ("Settled", "Cancelled"):
            query = {"state": state, "provider": str(provider_id)}
            rows += [row async for row in self._pages("/evm/jobs", "jobs", query) if isinstance(row, dict)]
        return rows

    async def windows(self) -> frozenset[int] | None:
        """Windows that the market takes, in seconds; None from a coordinator that does not tell."""
        told = (await _ok(self.requests, "/evm/chain")).fields.get(_WINDOWS)
        if not isinstance(told, list):
            return None
        return frozenset(read_uint(window, 32, _WINDOWS) for window in told)

    async def is_polled_for(self, provider_id: int) -> bool:
        """Whether somebody polled as this provider a moment ago: it is a candidate then for an order at its asks."""
        for ask in {ask.model_id: ask for ask in await self.asks_of(provider_id)}.values():
            demand = {"model_id": ask.model_id, "sla_secs": ask.sla, "units_in": 1, "units_out": 1}
            reply = await self.requests.ask("POST", "/v1/jobs", json={**demand, "designated": provider_id})
            listed = reply.fields.get("candidates") if isinstance(reply, CoordinatorReply) else None
            rows = listed if isinstance(listed, list) else []
            if any(isinstance(row, dict) and str(row.get("provider_id")) == str(provider_id) for row in rows):
                return True
        return False

    async def provider(self, provider_id: int) -> ProviderRecord:
        return read_shape(ProviderRecord, (await _ok(self.requests, f"/evm/providers/{provider_id}")).body)

    async def job(self, job_id: bytes) -> Job | None:
        """None when the coordinator knows no such job."""
        path = f"/evm/jobs/{hex_of(job_id)}"
        reply = await self.requests.ask("GET", path)
        if isinstance(reply, CoordinatorReply) and reply.status == 404:
            return None
        return Job.read(_checked(reply, path).fields)

    async def claimed_by(self, provider_id: int) -> list[Job]:
        query = {"state": "Claimed", "provider": str(provider_id)}
        return [Job.read(row) async for row in self._pages("/evm/jobs", "jobs", query)]

    async def asks_of(self, provider_id: int) -> list[PostedAsk]:
        return [ask for ask in await self.asks() if ask.provider_id == provider_id]

    async def asks(self) -> list[PostedAsk]:
        return [read_shape(PostedAsk, row) async for row in self._pages("/evm/asks", "asks", {})]

    async def _pages(self, path: str, key: str, query: Mapping[str, str]) -> AsyncIterator[object]:
        offset = 0
        while True:
            page = {**query, "limit": str(limits.LARGEST_PAGE), "offset": str(offset)}
            rows = (await _ok(self.requests, path, page)).fields.get(key)
            if not isinstance(rows, list):
                raise Unavailable(f"{path} was answered without {key}", 200)
            for row in rows:
                yield row
            # A page may also be cut by its size, and then it is shorter: an empty one is the only sure end.
            if not rows:
                return
            offset += len(rows)
            if offset > limits.LARGEST_OFFSET:
                raise Unavailable(f"{path} was answered without an end", 200)


@attrs.frozen(slots=True)
class Handed:
    """Jobs that a poll was given. `pending`: those whose post is under way; `block`: of the coordinator's index."""

    jobs: list[Job]
    pending: list[PendingOffer] = attrs.field(factory=list)
    block: int = 0


@attrs.frozen(slots=True)
class Coordinator(MarketReads):
    """Signed in as a provider: its polls and ops, too."""

    sessions: ProviderSessions

    async def poll(self, model_id: int, free: int, rates: Mapping[str, int], wait: int = 0) -> Handed:
        """Says that we are live with `free` slots; the jobs that are leased to us, at most so many.

        `rates`: the lowest `rate_in` and `rate_out` worth having. `wait`: seconds for which a coordinator that knows
        the parameter holds an answer without jobs; any other answers at once. One that knows nothing of pending jobs
        tells of none.
        """
        query = {
            "state": "Open",
            "model": str(model_id),
            "free": str(free),
            "pending": "1",
            "limit": str(min(limits.LARGEST_PAGE, max(1, free))),
        }
        query |= {f"min_{name}": str(rate) for name, rate in rates.items()}
        if wait:
            query["wait"] = str(wait)
        session = await self._session()
        # Not repeated: the next poll asks again anyway.
        reply = await self.requests.ask("GET", "/evm/jobs", params=query, headers=session.headers, attempts=1)
        if isinstance(reply, CoordinatorReply) and reply.status == 401:
            self.sessions.is_dead(session)
        told = _checked(reply, "the poll").fields
        rows, pending = told.get("jobs"), told.get("pending", [])
        if not isinstance(rows, list) or not isinstance(pending, list):
            raise Unavailable("the poll was answered without jobs", 200)
        jobs = [Job.read(row) for row in rows]
        if not pending:
            return Handed(jobs)
        block = read_uint(told.get("as_of_block"), 64, "as_of_block")
        return Handed(jobs, [PendingOffer.read(row) for row in pending], block)

    # --- ops ----------------------------------------------------------------------------------------------

    async def run(self, op: Body, give_up_at: float, *, resend: bool = True) -> OpOutcome:
        """Sending an op again is safe: the same signed op is one transaction, however often it is sent. It may still
        have taken effect when this says `NoAnswer`."""
        outcome = await self._op(op, give_up_at, {}, resend=resend)
        return CoordinatorRefusal(202, None) if isinstance(outcome, OpStored) else outcome

    async def _op(
        self, op: Body, give_up_at: float, headers: Mapping[str, str], *, resend: bool = True
    ) -> OpOutcome | OpStored:
        reply = await self._with_session("POST", "/evm/ops", give_up_at, json=op, resend=resend, more_headers=headers)
        if isinstance(reply, Unanswered | SignInRefused):
            return reply
        fields = reply.fields
        if reply.status == 202:
            return OpStored()
        if reply.status == 201:
            return OpMined(str(fields.get("tx_hash")), fields.get("status") == "success")
        if reply.status == 409 and fields.get("ok") is False:
            return ChainRefused(str(fields.get("reason")))
        if reply.status == 504:
            return OpPending(reply.code or "")
        return CoordinatorRefusal(reply.status, reply.code)

    async def store(self, op: Body, give_up_at: float) -> OpOutcome | OpStored:
        """Hand an op of a job over without waiting for its block. A coordinator that does not know how waits for it,
        and tells its end."""
        return await self._op(op, give_up_at, {"prefer": "respond-async"})

    async def publish(self, body: Body, give_up_at: float) -> CoordinatorReply | Unanswered | SignInRefused:
        return await self._with_session("PUT", "/evm/asks", give_up_at, json=body, resend=True)

    async def upload(self, sealed: bytes | BinaryIO, give_up_at: float) -> UploadOutcome:
        """A sealed result; `purpose` goes first, as the route wants it. One that is uploaded twice does no harm: the
        file that no settle names lapses."""
        parts = {"purpose": (None, "result"), "file": ("result", sealed, "application/octet-stream")}
        reply = await self._with_session("POST", "/v1/files", give_up_at, files=parts, resend=True)
        if isinstance(reply, Unanswered | SignInRefused):
            return reply
        if reply.status != 200:
            return CoordinatorRefusal(reply.status, reply.code)
        try:
            return Uploaded(read_shape(FileFields, reply.body).svc.cid or None)
        except Refused:
            return Uploaded(None)

    async def release(self, body: Body, give_up_at: float) -> ReleaseOutcome:
        reply = await self.requests.ask("POST", "/release", json=body, give_up_at=give_up_at)
        if isinstance(reply, Unanswered):
            return reply
        if reply.status != 200:
            return CoordinatorRefusal(reply.status, reply.code)
        try:
            released = read_shape(ReleasedShape, reply.body)
            return ReleasedKey(read_base64(released.dek_sealed, _LONGEST_SEALED_KEY, "dek_sealed"))
        except Refused:
            return CoordinatorRefusal(reply.status, "malformed_release")

    # --- sessions -----------------------------------------------------------------------------------------

    async def _session(self) -> ProviderSession:
        session = await self.sessions.current()
        if isinstance(session, SignInRefused):
            raise Unavailable(f"no session: {session.detail}", session.status)
        return session

    async def _with_session(
        self,
        method: str,
        path: str,
        give_up_at: float,
        *,
        resend: bool,
        more_headers: Mapping[str, str] = _NO_MORE,
        **request: Any,
    ) -> CoordinatorReply | Unanswered | SignInRefused:
        """A session that the coordinator forgot is renewed once."""
        for renewed in (False, True):
            session = await self.sessions.current(give_up_at)
            if isinstance(session, SignInRefused):
                return session
            headers = {**session.headers, **more_headers}
            reply = await self.requests.ask(
                method, path, headers=headers, give_up_at=give_up_at, resend=resend, **request
            )
            if isinstance(reply, Unanswered) or reply.status != 401 or renewed:
                return reply
            self.sessions.is_dead(session)
        raise AssertionError("the second answer is returned whatever it is")


async def _ok(requests: Requests, path: str, query: Mapping[str, str] | None = None) -> CoordinatorReply:
    return _checked(await requests.ask("GET", path, params=query), path)


def _checked(reply: CoordinatorReply | Unanswered, what: str) -> CoordinatorReply:
    if isinstance(reply, Unanswered):
        raise Unavailable(f"{what}: {reply.detail}")
    if reply.status != 200:
        raise Unavailable(f"{what}: answered {reply.status} {reply.code or ''}".rstrip(), reply.status)
    return reply
