"""Event histories that the contracts could have written, at random."""

from random import Random

import attrs

from coordinatord.chain.contracts import events as ev

GENESIS = 1_700_000_000  # the time of block 0; each that follows is a second later


@attrs.define
class History:
    """What stands on one fork; copy it (`branch`) to go on differently."""

    random: Random
    time: int = GENESIS  # of the last block
    open: list[tuple[bytes, int]] = attrs.field(factory=list)  # and when it expires
    claimed: list[tuple[bytes, int]] = attrs.field(factory=list)
    providers: int = 0

    def branch(self) -> "History":
        return attrs.evolve(self, open=list(self.open), claimed=list(self.claimed))

    def block(self, most: int = 6) -> list[ev.Event]:
        self.time += 1
        self.open = [(job_id, expires_at) for job_id, expires_at in self.open if expires_at >= self.time]
        events: list[ev.Event] = []
        for _ in range(self.random.randint(0, most)):
            events += self._step()
        return events

    def _step(self) -> list[ev.Event]:
        steps = [self._post, self._post, self._catalogue, self._register]
        if self.providers:
            steps += [self._provider, self._asks]
        if self.open:
            steps += [self._cancel]
            steps += [self._claim] * 3 if self.providers else []
        if self.claimed:
            steps += [self._end] * 2
        return self.random.choice(steps)()

    def _post(self) -> list[ev.Event]:
        r, job_id = self.random, self.random.randbytes(32)
        expires_at = self.time + r.choice((r.randint(1, 20), r.randint(1, 86_400)))
        self.open.append((job_id, expires_at))
        posted = ev.JobPosted(
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

    def _claim(self) -> list[ev.Event]:
        job_id, _ = self.open.pop(self.random.randrange(len(self.open)))
        provider_id = self.random.randint(1, self.providers)
        self.claimed.append((job_id, provider_id))
        return [ev.JobClaimed(job_id, provider_id, self.time)]

    def _end(self) -> list[ev.Event]:
        job_id, provider_id = self.claimed.pop(self.random.randrange(len(self.claimed)))
        reputation = ev.StandingSet(provider_id, self.random.randint(100, 1000), self.random.randint(0, 320))
        ending = self.random.randrange(3)
        if ending == 0:
            cost = self.random.getrandbits(120)
            settled = ev.JobSettled(job_id, provider_id, self.random.getrandbits(32), cost, 1, 2, "bafkresult")
            return [reputation, settled]
        return [reputation, (ev.JobFailed if ending == 1 else ev.JobReclaimed)(job_id, provider_id)]

    def _cancel(self) -> list[ev.Event]:
        return [ev.JobCancelled(self.open.pop(self.random.randrange(len(self.open)))[0])]

    def _register(self) -> list[ev.Event]:
        self.providers += 1
        registered = ev.ProviderRegistered(self.providers, self.random.randbytes(20))
        return [registered, ev.StandingSet(self.providers, 500, 40)]

    def _provider(self) -> list[ev.Event]:
        r, provider_id = self.random, self.random.randint(1, self.providers)
        key = r.choice((bytes(32), r.randbytes(32)))
        choices: tuple[ev.Event, ...] = (
            ev.IdentitySet(provider_id, key, r.randbytes(r.randint(0, 40)), r.getrandbits(40)),
            ev.CapacityRequested(provider_id, r.getrandbits(32), r.getrandbits(40)),
            ev.ProviderListed(provider_id, r.random() < 0.5),
            ev.CeilingSet(provider_id, r.getrandbits(32)),
            ev.AllModelsAllowed(provider_id, r.random() < 0.5),
            ev.ModelAllowed(provider_id, r.randint(1, 3), r.random() < 0.5),
        )
        return [r.choice(choices)]

    def _asks(self) -> list[ev.Event]:
        r = self.random
        pairs = r.sample([(model, sla) for model in (1, 2, 3) for sla in (60, 3600)], r.randint(0, 4))
        quotes = tuple(
            ev.AskRates(model, sla, *r.choice(((0, 0), (r.getrandbits(128), r.getrandbits(20)))))
            for model, sla in pairs
        )
        return [ev.AsksPublished(r.randint(1, self.providers), r.getrandbits(40), quotes)]

    def _catalogue(self) -> list[ev.Event]:
        r = self.random
        choices: tuple[ev.Event, ...] = (
            ev.ModelSet(r.randint(1, 3), r.choice(("m/1", "m\0\ufffd")), r.random() < 0.5, "owner", "{}"),
            ev.SlaSet(r.choice((60, 3600)), r.random() < 0.5),
            ev.FeesSet(r.randint(0, 2000), r.getrandbits(128)),
            ev.AllowlistSet(r.choice((b"\1", b"\2")) * 32, r.randint(0, 2), r.choice(("", '{"a":1}'))),
            ev.TreasurySet(r.randbytes(20)),
            ev.CallRefused(r.getrandbits(8), r.randbytes(4)),
        )
        return [r.choice(choices)]
