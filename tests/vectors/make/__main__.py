"""Writes the vectors of signatures, typed data, job ids, quotes and transactions.

    python -m tests.vectors.make

Nothing of `common` is used, so that a vector is evidence about it and not an echo of it.
"""

from tests.vectors.make.quotes import job_ids, quotes
from tests.vectors.make.signatures import signatures
from tests.vectors.make.transactions import transactions
from tests.vectors.make.typed_data import typed_data

typed_data()
signatures()
job_ids()
quotes()
transactions()
