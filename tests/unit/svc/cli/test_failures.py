import pytest

from svc import errors
from svc.cli.exit_codes import ExitCode
from svc.cli.failures import error_json, exit_code_for, hint_for
from svc.errors import SvcError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.OrderRefused("no", param="max_tokens"), ExitCode.USAGE),
        (errors.OrderRefused("no key", param="SVC_WALLET_KEY"), ExitCode.NO_KEY),
        (errors.SigningFailed("no"), ExitCode.NO_KEY),
        (errors.ConnectionFailed("no"), ExitCode.TRY_AGAIN),
        (errors.NoProvider("nobody"), ExitCode.TRY_AGAIN),
        (errors.NotReady("wait", type_="not_ready", status=503, retryable=True), ExitCode.TRY_AGAIN),
        (errors.PlanShort("m", 1, 2), ExitCode.TRY_AGAIN),
        (errors.InvalidRequest("no", type_="invalid_request_error", status=400), ExitCode.REFUSED),
        (errors.QuoteRefused("no", code="over_max_amount"), ExitCode.REFUSED),
        (errors.EscrowUntrusted("no", code="escrow_mock"), ExitCode.REFUSED),
        (errors.JobFailed("0x00", "reclaim"), ExitCode.NO_RESULT),
        (errors.BatchFailed("batch_1", "no", None), ExitCode.NO_RESULT),
        (errors.WaitTimedOut("job", 1), ExitCode.STILL_RUNNING),
        (errors.ReceiptTimeout("wait", type_="receipt_timeout", status=504), ExitCode.STILL_RUNNING),
        (errors.ResultUnreadable("not yet", code="no_result"), ExitCode.STILL_RUNNING),
        (errors.OutcomeUnknown("no word"), ExitCode.STILL_RUNNING),
        (errors.ResultUnreadable("no", code="gateway_unavailable", retryable=True), ExitCode.UNREADABLE),
    ],
)
def test_failure_ends_with_its_exit_code(error: SvcError, code: ExitCode) -> None:
    assert exit_code_for(error) is code


def test_failure_that_can_be_mended_says_how() -> None:
    assert "SVC_PIN_GATEWAY" in str(hint_for(errors.ResultUnreadable("no", code="reads_disabled")))
    assert "svc keygen" in str(hint_for(errors.OrderRefused("no", param="SVC_WALLET_KEY")))
    assert hint_for(errors.OrderRefused("no", param="seed")) is None


def test_failure_in_json_has_all_that_a_script_branches_on() -> None:
    error = errors.Busy("many", type_="busy", status=429, code="c", param="p", request_id="r", retryable=True)
    assert error_json(error) == {
        **{"message": "many", "type": "busy", "code": "c", "param": "p", "request_id": "r", "retryable": True}
    }
