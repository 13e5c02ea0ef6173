"""Checks of files: an upload is readable by its owner alone, and invalid forms are refused."""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from common.api.files import File
from tests.conformance.asking import Answer, Body, TriedCoordinator, not_like, not_refused
from tests.conformance.buyer import Buyer

_SPEC: Final = "the specification, "
_BAD: Final = "invalid_request_error"


async def upload(coordinator: TriedCoordinator, buyer: Buyer, purpose: str | None, content: bytes | None) -> Answer:
    """Upload a form. None omits a part."""
    parts: dict[str, Any] = {}
    if purpose is not None:
        parts["purpose"] = (None, purpose)
    if content is not None:
        parts["file"] = ("lines.jsonl", content)
    return await coordinator.ask("POST", "/v1/files", files=parts, headers=buyer.session)


@attrs.frozen
class UploadTrials:
    """Uploads are not deleted, they expire."""

    coordinator: TriedCoordinator
    buyer: Buyer
    other: Buyer

    def _judge(self, area: str, tried: str, expected: str, wrong: str | None, page: str) -> None:
        self.coordinator.judge(area, tried, expected, wrong, page)

    async def run(self) -> None:
        lines = b'{"a": 1}\n\n{"b": 2}\n'
        answer = await upload(self.coordinator, self.buyer, "batch", lines)
        wrong = not_like(answer, 200, File)
        if wrong is None:
            wanted = {"bytes": len(lines), "purpose": "batch", "status": "uploaded", "filename": "lines.jsonl"}
            got = {name: answer.fields[name] for name in wanted}
            lines_told = answer.fields["svc"]["lines"]
            lasts = answer.fields["expires_at"] - answer.fields["created_at"]
            wrong = None if got == wanted and lines_told == 2 and lasts == 300 else str(answer)
        expected = "200, its size, two lines, expires_at 300 s after created_at"
        self._judge("files", "upload of a batch file", expected, wrong, _SPEC + "4.7")
        if wrong is None:
            file = answer.fields["id"]
            told = await self.coordinator.get(f"/v1/files/{file}", headers=self.buyer.session)
            wrong = not_like(told, 200, File) or (None if told.fields["id"] == file else str(told))
            self._judge("files", "GET /v1/files/…", "200, as uploaded", wrong, _SPEC + "4.7")
            content = await self.coordinator.get(f"/v1/files/{file}/content", headers=self.buyer.session)
            kind = content.headers.get("content-type", "")
            same = content.status == 200 and content.content == lines and kind.startswith("application/jsonl")
            wrong = None if same else f"{content.status} {kind} {len(content.content)} bytes"
            self._judge("files", "content of a file", "200 application/jsonl, the same bytes", wrong, _SPEC + "4.7")
            for path in (f"/v1/files/{file}", f"/v1/files/{file}/content"):
                other = await self.coordinator.get(path, headers=self.other.session)
                wrong = not_refused(other, 404, "not_found")
                self._judge("files", f"another's {path.replace(file, '…')}", "404 not_found", wrong, _SPEC + "4.7")
        spoiled: Sequence[tuple[str, str | None, bytes | None, Body]] = (
            ("purpose that is none", "fine-tune", lines, {"code": "invalid_purpose"}),
            ("no bytes", "result", b"", {"code": "empty_file"}),
            ("batch file of blank lines", "batch", b"\n\n", {"code": "empty_file"}),
            ("input that is no container", "input", b"\x02" + bytes(200), {"code": "bad_container"}),
            ("form without a purpose", None, lines, {"code": None}),
            ("form without a file", "batch", None, {"code": None}),
        )
        for tried, purpose, content_, more in spoiled:
            wrong = not_refused(await upload(self.coordinator, self.buyer, purpose, content_), 400, _BAD, **more)
            self._judge("files", tried, f"400 {more['code'] or ''}".strip(), wrong, _SPEC + "4.7")
