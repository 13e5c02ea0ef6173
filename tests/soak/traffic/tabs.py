"""Tabs: some requests over one claimed job, which is settled once."""

from typing import Final

import attrs

from devnet.catalogue import MODELS
from svc.errors import TabFaulty
from svc.tabs.outcome import TabOutcome
from svc.tabs.tab import Tab
from tests.soak.programs import SLA_SECONDS
from tests.soak.timeline import Timeline
from tests.soak.traffic.buyer import Buyer
from tests.soak.traffic.work import Work, new_question

_MAX_REQUESTS: Final = 5


@attrs.frozen
class TabWork:
    work: Work
    timeline: Timeline

    async def tab(self, buyer: Buyer) -> str:
        """Open a tab, send some requests, and close it. Its provider may charge only the acknowledged answers."""
        buyer.doing = "opening a tab"
        requests = buyer.random.randint(1, _MAX_REQUESTS)
        try:
            async with (
                buyer.anywhere() as client,
                client.tabs.open(MODELS[0].name, window=f"{SLA_SECONDS}s", requests=_MAX_REQUESTS) as tab,
            ):
                buyer.doing = f"asking in tab {tab.id}"
                for _ in range(requests):
                    await self._ask(tab)
                buyer.doing = f"settling tab {tab.id}"
        except TabFaulty as faulty:
            self.timeline.complain(f"I5: {faulty.message}")
            return str(faulty.code)
        if tab.outcome is None:
            raise AssertionError("a tab that is closed has an outcome")
        return self._ended(tab, tab.outcome, requests)

    async def _ask(self, tab: Tab) -> None:
        question = new_question()
        reply = await (await tab.request(question)).answer()
        if question not in str(reply.output):
            self.timeline.complain(f"request {reply.id} of tab {tab.id} answers something else")

    def _ended(self, tab: Tab, outcome: TabOutcome, requests: int) -> str:
        if outcome.job.status != "completed":
            return outcome.job.status
        self.work.promise(tab.file.job_id)
        if outcome.fault is not None:
            self.timeline.complain(f"I5: the settle of tab {tab.id} is wrong: {outcome.fault}")
        if outcome.requests > requests or outcome.cost + outcome.returned != tab.file.amount:
            self.timeline.complain(f"I5: tab {tab.id} of {requests} requests and {tab.file.amount} ended as {outcome}")
        return "settled" if outcome.requests == requests else "settled without the last acks"
