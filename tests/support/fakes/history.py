"""Random event histories that the contracts could have written."""

from random import Random

import attrs

from coordinatord.chain.contracts import contract_events

GENESIS = 1_700_000_000  # time of block 0; each later block is one second later


@attrs.define
class History:
    """Events of one fork. Copy it with `branch` to continue differently."""

    random: Random
    time: int = GENESIS  # of the last block
    open: list[tuple[bytes, int]] = attrs.field(factory=list)  # job and its expiry
    claimed: list[tuple[bytes, int]] = attrs.field(factory=list)
    providers: int = 0

    def branch(self) -> "History":
        return attrs.evolve(self, open=list(self.open), claimed=list(self.claimed))

    def block(self, most: int = 6) -> list[contract_events.Event]:
        self.time += 1
        self.open = [(job_id, expires_at) for job_id, expires_at in self.open if expires_at >= self.time]
        events: list[contract_events.Event] = []
        for _ in range(self.random.randint(0, most)):
            events += self._step()
        return events

    def _step(self) -> list[contract_events.Event]:
        steps = [self._post, self._post, self._catalogue, self._register]
        if self.providers:
            steps += [self._provider, self._asks]
        if self.open:
            steps += [self._cancel]
            steps += [self._claim] * 3 if self.providers else []
        if self.claimed:
            steps += [self._end] * 2
        return self.random.choice(steps)()

    def _post(self) -> list[contract_events.Event]:
        r, job_id = self.random, self.random.randbytes(32)
        expires_at = self.time + r.choice((r.randint(1, 20), r.randint(1, 86_400)))
        self.open.append((job_id, expires_at))
        posted = contract_events.JobPosted(
            job_id=job_id,
            owner=r.choice((b"\xaa", b"\xbb")) * 20,
            model_id=r.randint(1, 3),
            c=r.randbytes(32),
            sla_secs=r.choice((60, 3600)),
            rate_in=r.getrandbits(r.randint(1, 90)),
            rate_out=r.getrandbits(r.randint(1, 90)),
            units_in=r.getrandbits(r.randint(1, 32)),
            units_out=r.getrandbits(r.randint(1, 32)),
            designated=r.choice((0, 1)),
            expires_at=expires_at,
            fee_bps=r.randint(0, 2000),
            gas_fee=r.getrandbits(128),
            task_cid=r.choice(("bafkqaaa", "tab\tline\nback\\slash\r", "\\N", "ünïcödé")),
            pay_sig=r.randbytes(65),
        )
        return [posted]

    def _claim(self) -> list[contract_events.Event]:
        job_id, _ = self.open.pop(self.random.randrange(len(self.open)))
        provider_id = self.random.randint(1, self.providers)
        self.claimed.append((job_id, provider_id))
        return [contract_events.JobClaimed(job_id, provider_id, self.time)]

    def _end(self) -> list[contract_events.Event]:
        job_id, provider_id = self.claimed.pop(self.random.randrange(len(self.claimed)))
        reputation = contract_events.StandingSet(
            provider_id, self.random.randint(100, 1000), self.random.randint(0, 320)
        )
        ending = self.random.randrange(3)
        if ending == 0:
            cost = self.random.getrandbits(120)
            settled = contract_events.JobSettled(
                job_id, provider_id, self.random.getrandbits(32), cost, 1, 2, "bafkresult"
            )
            return [reputation, settled]
        return [
            reputation,
            (contract_events.JobFailed if ending == 1 else contract_events.JobReclaimed)(job_id, provider_id),
        ]

    def _cancel(self) -> list[contract_events.Event]:
        return [contract_events.JobCancelled(self.open.pop(self.random.randrange(len(self.open)))[0])]

    def _register(self) -> list[contract_events.Event]:
        self.providers += 1
        registered = contract_events.ProviderRegistered(self.providers, self.random.randbytes(20))
        return [registered, contract_events.StandingSet(self.providers, 500, 40)]

    def _provider(self) -> list[contract_events.Event]:
        r, provider_id = self.random, self.random.randint(1, self.providers)
        key = r.choice((bytes(32), r.randbytes(32)))
        choices: tuple[contract_events.Event, ...] = (
            contract_events.IdentitySet(provider_id, key, r.randbytes(r.randint(0, 40)), r.getrandbits(40)),
            contract_events.CapacityRequested(provider_id, r.getrandbits(32), r.getrandbits(40)),
            contract_events.ProviderListed(provider_id, r.random() < 0.5),
            contract_events.CeilingSet(provider_id, r.getrandbits(32)),
            contract_events.AllModelsAllowed(provider_id, r.random() < 0.5),
            contract_events.ModelAllowed(provider_id, r.randint(1, 3), r.random() < 0.5),
        )
        return [r.choice(choices)]

    def _asks(self) -> list[contract_events.Event]:
        r = self.random
        pairs = r.sample([(model, sla) for model in (1, 2, 3) for sla in (60, 3600)], r.randint(0, 4))
        quotes = tuple(
            contract_events.AskRates(model, sla, *r.choice(((0, 0), (r.getrandbits(128), r.getrandbits(20)))))
            for model, sla in pairs
        )
        return [contract_events.AsksPublished(r.randint(1, self.providers), r.getrandbits(40), quotes)]

    def _catalogue(self) -> list[contract_events.Event]:
        r = self.random
        choices: tuple[contract_events.Event, ...] = (
            contract_events.ModelSet(r.randint(1, 3), r.choice(("m/1", "m\0\ufffd")), r.random() < 0.5, "owner", "{}"),
            contract_events.SlaSet(r.choice((60, 3600)), r.random() < 0.5),
            contract_events.FeesSet(r.randint(0, 2000), r.getrandbits(128)),
            contract_events.AllowlistSet(r.choice((b"\1", b"\2")) * 32, r.randint(0, 2), r.choice(("", '{"a":1}'))),
            contract_events.TreasurySet(r.randbytes(20)),
            contract_events.CallRefused(r.getrandbits(8), r.randbytes(4)),
        )
        return [r.choice(choices)]
