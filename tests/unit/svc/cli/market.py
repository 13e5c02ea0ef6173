"""A market of one fake coordinator for the command line. The test decides how an order ends."""

from collections.abc import Callable
from typing import Any

import attrs

from common.box import SecretKey
from common.envelope import ResultBody
from common.sealed_result import seal_result
from tests.unit.svc.fake_coordinator import (
    CANDIDATE,
    JOB_REGISTRY,
    Answer,
    Asked,
    FakeCoordinator,
    job,
    posted,
    progress,
    quoting,
    settle,
    step,
    stored,
)

GATEWAY = "http://gateway"
CIPHER = SecretKey(b"\x05" * 32)
COMPLETED: dict[str, Any] = {"completion_tok": "3", "state": 2, "ended_because": 1, "result_cid": "bafyr"}
FLOORS = [{"model_id": "1", "sla": str(sla), "rate_in": "1", "rate_out": "2"} for sla in (3600, 86_400)]


@attrs.define
class FakeMarket:
    """`job_id`: id of the last order. `status` and `ended`: how the order ends. `output`: the model's output."""

    coordinator: FakeCoordinator = attrs.field(factory=FakeCoordinator)
    status: str = "completed"
    ended: dict[str, Any] = attrs.field(factory=lambda: dict(COMPLETED))
    output: object = "out"
    job_id: str = ""
    early: bool = False  # the coordinator reports every settle before its block

    def __attrs_post_init__(self) -> None:
        self.coordinator.tell("POST /v1/jobs", self._order)
        self.coordinator.tell("GET /evm/asks/floors", Answer(200, {"floors": FLOORS, "as_of_block": "5"}))

    @property
    def payments(self) -> int:
        return len([asked for asked in self.coordinator.to("POST /v1/jobs") if "auth_sig" in asked.body])

    def end(self, status: str, **ended: Any) -> None:
        """Set how the order ends. The coordinator reports the end immediately."""
        self.status, self.ended = status, ended

    def _order(self, asked: Asked) -> Answer:
        if "c" not in asked.body:
            return Answer(402, {"candidates": [CANDIDATE]})
        if "auth_sig" not in asked.body:
            return quoting()(asked)
        self.job_id = asked.body["job_id"]
        self.coordinator.tell(f"GET /v1/jobs/{self.job_id}", Answer(200, job(self.job_id, self.status, **self.ended)))
        raw = bytes.fromhex(self.job_id[2:])
        body = ResultBody(raw, self.output, {"output_tokens": 3}).encode()
        result = seal_result(CIPHER.public, 31337, bytes.fromhex(JOB_REGISTRY[2:]), raw, body)
        self.coordinator.tell(f"GET {GATEWAY}/ipfs/bafyr", Answer(200, result))
        if not self.early:
            return posted(asked)
        claimed = step("claim", "stored", provider_id="7")
        told = progress(self.job_id, "completed", claimed, settle())
        self.coordinator.tell(f"GET /v1/jobs/{self.job_id}/progress", Answer(200, told))
        return stored(asked)


Svc = Callable[[str], int]
