"""`svcd try`: run one job through sealing, opening and the model server, without the chain."""

from collections.abc import Mapping
from typing import Final

import attrs
import trio

from common import quotes
from common.address_book import AddressBook
from common.api.states import JobState
from common.box import SecretKey
from common.container import Opener, commitment_of, seal
from common.daemon.process import Fatal
from common.envelope import Envelope, ResultBody
from common.pricing.model_input import Modality
from common.pricing.units import units_of
from common.refusal import Refused
from common.sealed_result import open_result
from svc.wire.connections import open_client
from svcd.backends.build import open_backend
from svcd.base.end_reasons import WorkFailed
from svcd.base.errors import Unavailable
from svcd.config import DaemonConfig, ModelConfig
from svcd.coordinator.client import open_transport, read_deployment
from svcd.journal.book_row import Job
from svcd.journal.held_job import ClaimedJob
from svcd.journal.slots import Slots
from svcd.journal.work import ModelWork, WorkOutput
from svcd.operator.answer_text import readable_text
from svcd.payload.opening import build_job_work, check_commitment, open_envelope
from svcd.payload.sealable import to_sealable
from svcd.payload.spool import Spool
from svcd.stages.sealer import seal_body

_INPUT_KEYS: Final[Mapping[Modality, str]] = {"image": "prompt", "video": "prompt"}
_MIN_WINDOW_S: Final = 60


@attrs.frozen(slots=True)
class TrialResult:
    """Result of a trial. `earnings` has the provider's payment, in base units, by window."""

    answer: str
    units_in: int
    completion_tok: int
    seconds: float
    sealed_sizes: tuple[int, int]  # bytes of the sealed order and of the sealed result
    earnings: Mapping[int, int]
    address_book: AddressBook


async def try_model(config: DaemonConfig, name: str, text: str, units_out: int | None = None) -> TrialResult:
    """Run one job with the given text as input. Raise `Fatal` with the reason if the job would have failed."""
    model = next((each for each in config.models if each.name == name), None)
    if model is None:
        raise Fatal(f"{name!r} is not configured; the configured models are {', '.join(config.slots)}")
    book = config.addresses or await _read_reported_book(config)
    result_key = SecretKey.generate()
    modality = next(iter(model.serves)) if len(model.serves) == 1 else "text"
    model_input: dict[str, object] = {_INPUT_KEYS.get(modality, "input"): text}
    envelope = Envelope(config.wallet.address, name, model_input, result_key.public)
    units = units_of(modality, model_input, units_out=units_out)
    box = config.box or SecretKey.generate()
    container = seal(box.public, book.chain_id, book.job_registry, config.wallet.address, envelope.encode())
    job = _build_job(config, container, units.units_in, units.units_out)
    try:
        work = await _open_container(config, model, job=job, box=box, container=container, book=book)
        started = trio.current_time()
        async with open_backend(model.backend, config.private_paths) as backend:
            output = await backend.run(work)
        seconds = trio.current_time() - started
        result = _seal_result(job, output, result_key, book)
    except WorkFailed as failure:
        raise Fatal(f"{name}: the job would have failed: {failure}") from None
    body = ResultBody.parse(open_result(result_key, book.chain_id, book.job_registry, job.job_id, result))
    charged = min(output.completion_tok, units.units_out)
    return TrialResult(
        answer=readable_text(body.output),
        units_in=units.units_in,
        completion_tok=charged,
        seconds=seconds,
        sealed_sizes=(len(container), len(result)),
        earnings={
            window: quotes.cap(ask.rate_in, ask.rate_out, units.units_in, charged) for window, ask in model.asks.items()
        },
        address_book=book,
    )


async def _read_reported_book(config: DaemonConfig) -> AddressBook:
    async with open_client(base_url=config.coordinator_url, timeout=15) as http:
        try:
            return await read_deployment(open_transport(http))
        except (Unavailable, Refused) as wrong:
            raise Fatal(
                f"the contract addresses are unknown (set addresses_file, or start the coordinator): {wrong}"
            ) from None


def _build_job(config: DaemonConfig, container: bytes, units_in: int, units_out: int) -> Job:
    found = commitment_of(container)
    owner = config.wallet.address
    return Job(
        job_id=quotes.derive_job_id(owner, found.c),
        owner=owner,
        c=found.c,
        model_id=0,
        sla_secs=max(window for model in config.models for window in model.asks),
        designated=0,
        rate_in=0,
        rate_out=0,
        units_in=units_in,
        units_out=units_out,
        expires_at=0,
        provider_id=0,
        claimed_at=0,
        state=JobState.CLAIMED,
        task_cid="",
    )


async def _open_container(
    config: DaemonConfig, model: ModelConfig, *, job: Job, box: SecretKey, container: bytes, book: AddressBook
) -> ModelWork:
    """Open the container with the same checks as `stages/opener.py`."""
    spool = Spool(config.state_directory, max(len(container), config.max_container_bytes))
    await spool.write(container)
    check_commitment(spool, job.c)
    sealed = open_envelope(
        spool, lambda: Opener.with_secret(box, book.chain_id, book.job_registry, job.owner), job.owner
    )
    slot = Slots({model.name: 1}).take_unchecked(model.name, job.job_id)
    if slot is None:
        raise AssertionError("a trial starts without jobs in its slots")
    window = max(_MIN_WINDOW_S, *model.asks)
    held = ClaimedJob(job, model.name, slot, trio.current_time() + window)
    deadline = held.window_ends_at - min(model.margin_seconds, window / 2)
    return build_job_work(held, sealed.input, model.serves, deadline)


def _seal_result(job: Job, output: WorkOutput, result_key: SecretKey, book: AddressBook) -> bytes:
    body = ResultBody(job.job_id, to_sealable(output.output), output.usage).encode()
    return seal_body(result_key.public, book.chain_id, book.job_registry, job.job_id, body)


def trial_report(result: TrialResult) -> str:
    """Return a text with the trial's time and units, and the earnings at each ask."""
    unit, token = 10**result.address_book.payment_token_decimals, result.address_book.token_domain.name
    took = f"{result.units_in} units in, {result.completion_tok} out, {result.seconds:.2f} s"
    lines = [f"took     {took}; sealed order {result.sealed_sizes[0]} bytes, sealed result {result.sealed_sizes[1]}"]
    for window, cost in sorted(result.earnings.items()):
        lines.append(
            f"earns    {cost / unit:.{result.address_book.payment_token_decimals}f} {token} at the ask for {window} s"
        )
    return "\n".join(lines)
