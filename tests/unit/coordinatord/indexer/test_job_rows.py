"""Rows in COPY format. The index's tests check on real tables how PostgreSQL reads them."""

import pytest
from msgspec.structs import replace

from coordinatord.base.errors import Retryable
from coordinatord.chain.indexer.changes import NewJob
from coordinatord.chain.indexer.job_rows import encode_job_rows, encode_posted_rows

JOB = NewJob(b"\1" * 32, b"\2" * 20, b"\3" * 32, 5, 60, 1, 2, 3, 4, 0, 9, 7, 250, 8, "bafk", b"\4" * 65, 11, 12)


def test_number_beyond_the_column_is_a_contradiction() -> None:
    with pytest.raises(Retryable, match=r"contradict.*number too large for a post"):
        encode_posted_rows([(0, replace(JOB, expires_at=2**63))])
    with pytest.raises(Retryable, match=r"contradict.*number too large for its end"):
        encode_job_rows([(0, replace(JOB, state=2, completion_tok=2**63))])
