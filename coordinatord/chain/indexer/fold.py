"""Merge events into row changes, in memory.

A job that is posted, claimed and settled within one range becomes one new row. Existing rows are not read here: the
writer checks that they are in the required state. This module checks the states of new jobs.
"""

from collections.abc import Callable
from typing import Final

from coordinatord.chain.contracts import contract_events
from coordinatord.chain.indexer.changes import (
    BY_FAIL,
    BY_OWNER,
    BY_RECLAIM,
    BY_SETTLE,
    CANCELLED,
    CLAIMED,
    OPEN,
    SETTLED,
    CatalogueModel,
    JobPatch,
    NewJob,
    NewProvider,
    ProviderPatch,
    RowChanges,
    contradiction_error,
)


class EventMerger:
    """Merges events, added in chain order, into `changes`. `block_time_of` returns the time of a block."""

    def __init__(self, block_time_of: Callable[[int], int]) -> None:
        self.changes = RowChanges()
        self._block_time_of = block_time_of
        # Block of the event being added.
        self._block_number: int

    def add(self, event: contract_events.Event, block_number: int, log_index: int) -> None:
        """Merge the event into `changes`. Raise Retryable when the event cannot follow the events before it."""
        if type(event) is contract_events.JobPosted:
            self._on_job_posted(event, block_number, log_index)
            return
        handle = _HANDLERS.get(type(event))
        if handle is not None:
            self._block_number = block_number
            handle(self, event)

    def _on_job_posted(self, event: contract_events.JobPosted, block_number: int, log_index: int) -> None:
        job_id = event.job_id
        jobs = self.changes.new_jobs
        if job_id in jobs or job_id in self.changes.jobs:
            raise contradiction_error(f"job {job_id.hex()} is posted twice")
        rate_in, rate_out, units_in, units_out = event.rate_in, event.rate_out, event.units_in, event.units_out
        jobs[job_id] = NewJob(
            job_id,
            event.owner,
            event.c,
            event.model_id,
            event.sla_secs,
            rate_in,
            rate_out,
            units_in,
            units_out,
            event.designated,
            event.expires_at,
            # Same formula as in common.quotes.
            -(-(rate_in * units_in + rate_out * units_out) // 1_000_000) or 1,
            event.fee_bps,
            event.gas_fee,
            event.task_cid,
            event.pay_sig,
            block_number,
            log_index,
        )

    def _on_job_claimed(self, event: contract_events.JobClaimed) -> None:
        job = self._change_state(event.job_id, OPEN, CLAIMED)
        job.provider_id = event.provider_id
        job.claimed_at = event.claimed_at
        self._get_provider_change(event.provider_id).active_jobs += 1

    def _on_job_settled(self, event: contract_events.JobSettled) -> None:
        job = self._end_job(event.job_id, CLAIMED, SETTLED, BY_SETTLE)
        job.completion_tok = event.completion_tok
        job.cost = event.cost
        job.result_cid = event.result_cid
        self._get_provider_change(event.provider_id).active_jobs -= 1

    def _on_job_failed(self, event: contract_events.JobFailed) -> None:
        self._end_job(event.job_id, CLAIMED, CANCELLED, BY_FAIL)
        self._get_provider_change(event.provider_id).active_jobs -= 1

    def _on_job_reclaimed(self, event: contract_events.JobReclaimed) -> None:
        self._end_job(event.job_id, CLAIMED, CANCELLED, BY_RECLAIM)
        self._get_provider_change(event.provider_id).active_jobs -= 1

    def _on_job_cancelled(self, event: contract_events.JobCancelled) -> None:
        self._end_job(event.job_id, OPEN, CANCELLED, BY_OWNER)

    def _change_state(self, job_id: bytes, required_state: int, state: int) -> NewJob | JobPatch:
        job = self.changes.new_jobs.get(job_id) or self.changes.jobs.get(job_id)
        if job is None:
            job = self.changes.jobs[job_id] = JobPatch(job_id, required_state, state)
        elif job.state != required_state:
            raise contradiction_error(f"job {job_id.hex()} cannot change from state {job.state} to state {state}")
        job.state = state
        return job

    def _end_job(self, job_id: bytes, required_state: int, state: int, because: int) -> NewJob | JobPatch:
        job = self._change_state(job_id, required_state, state)
        job.ended_because = because
        job.ended_at = self._block_time_of(self._block_number)
        return job

    def _on_model_set(self, event: contract_events.ModelSet) -> None:
        self.changes.models[event.model_id] = CatalogueModel(
            event.model_id, event.name, event.enabled, event.owned_by, event.params_schema
        )

    def _on_sla_set(self, event: contract_events.SlaSet) -> None:
        self.changes.slas[event.sla_secs] = event.allowed

    def _on_fees_set(self, event: contract_events.FeesSet) -> None:
        self.changes.fees = (event.fee_bps, event.gas_fee)

    def _on_provider_registered(self, event: contract_events.ProviderRegistered) -> None:
        known = (self.changes.new_providers, self.changes.providers, self.changes.removed_providers)
        if any(event.provider_id in rows for rows in known):
            raise contradiction_error(f"provider {event.provider_id} is registered twice")
        # Both times start at the registration, because the registry rejects operations signed earlier.
        time = self._block_time_of(self._block_number)
        self.changes.new_providers[event.provider_id] = NewProvider(
            event.provider_id, event.operator, identity_issued_at=time, capacity_issued_at=time
        )

    def _on_operator_changed(self, event: contract_events.OperatorChanged) -> None:
        self._get_provider_change(event.provider_id).operator = event.operator

    def _on_provider_deregistered(self, event: contract_events.ProviderDeregistered) -> None:
        self.changes.providers.pop(event.provider_id, None)
        if self.changes.new_providers.pop(event.provider_id, None) is None:
            self.changes.removed_providers.add(event.provider_id)

    def _on_identity_set(self, event: contract_events.IdentitySet) -> None:
        provider = self._get_provider_change(event.provider_id)
        provider.box_key, provider.evidence, provider.identity_issued_at = (
            event.box_key,
            event.evidence,
            event.issued_at,
        )

    def _on_capacity_requested(self, event: contract_events.CapacityRequested) -> None:
        provider = self._get_provider_change(event.provider_id)
        provider.requested, provider.capacity_issued_at = event.n, event.issued_at

    def _on_provider_listed(self, event: contract_events.ProviderListed) -> None:
        self._get_provider_change(event.provider_id).listed = event.listed

    def _on_ceiling_set(self, event: contract_events.CeilingSet) -> None:
        self._get_provider_change(event.provider_id).ceiling = event.ceiling

    def _on_all_models_allowed(self, event: contract_events.AllModelsAllowed) -> None:
        self._get_provider_change(event.provider_id).allow_all_models = event.allowed

    def _on_model_allowed(self, event: contract_events.ModelAllowed) -> None:
        self.changes.provider_models[event.provider_id, event.model_id] = event.allowed

    def _on_standing_set(self, event: contract_events.StandingSet) -> None:
        self._get_provider_change(event.provider_id).reputation = event.reputation

    def _get_provider_change(self, provider_id: int) -> NewProvider | ProviderPatch:
        known = self.changes.new_providers.get(provider_id) or self.changes.providers.get(provider_id)
        if known is None:
            if provider_id in self.changes.removed_providers:
                raise contradiction_error(f"provider {provider_id} has an event after its deregistration")
            known = self.changes.providers[provider_id] = ProviderPatch(provider_id)
        return known

    def _on_asks_published(self, event: contract_events.AsksPublished) -> None:
        self.changes.ask_times[event.provider_id] = event.signed_at
        for quote in event.quotes:
            withdrawn = quote.rate_in == 0 and quote.rate_out == 0
            rates = None if withdrawn else (quote.rate_in, quote.rate_out)
            self.changes.asks[event.provider_id, quote.model_id, quote.sla] = rates

    def _on_allowlist_set(self, event: contract_events.AllowlistSet) -> None:
        self.changes.allowlist[event.key] = (event.status, event.entry)


# Events that are missing here (payouts, roles, rejected calls) change no row.
_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    contract_events.JobClaimed: EventMerger._on_job_claimed,
    contract_events.JobSettled: EventMerger._on_job_settled,
    contract_events.JobFailed: EventMerger._on_job_failed,
    contract_events.JobReclaimed: EventMerger._on_job_reclaimed,
    contract_events.JobCancelled: EventMerger._on_job_cancelled,
    contract_events.ModelSet: EventMerger._on_model_set,
    contract_events.SlaSet: EventMerger._on_sla_set,
    contract_events.FeesSet: EventMerger._on_fees_set,
    contract_events.ProviderRegistered: EventMerger._on_provider_registered,
    contract_events.OperatorChanged: EventMerger._on_operator_changed,
    contract_events.ProviderDeregistered: EventMerger._on_provider_deregistered,
    contract_events.IdentitySet: EventMerger._on_identity_set,
    contract_events.CapacityRequested: EventMerger._on_capacity_requested,
    contract_events.ProviderListed: EventMerger._on_provider_listed,
    contract_events.CeilingSet: EventMerger._on_ceiling_set,
    contract_events.AllModelsAllowed: EventMerger._on_all_models_allowed,
    contract_events.ModelAllowed: EventMerger._on_model_allowed,
    contract_events.StandingSet: EventMerger._on_standing_set,
    contract_events.AsksPublished: EventMerger._on_asks_published,
    contract_events.AllowlistSet: EventMerger._on_allowlist_set,
}
