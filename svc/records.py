"""Records that the coordinator answers with, as frozen values: the API's shapes, with integers for decimal strings.

Unknown fields are ignored. Ids, hashes, addresses and keys stay 0x-prefixed text, as every other tool shows them.
"""

from common.wire import batches, chain, escrow, files, jobs, market, states
from common.wire.shapes import Shape

Record = Shape

Purpose = files.Purpose
JobStatus = states.JobStatus
BatchStatus = states.BatchStatus
ENDED_JOB = states.ENDED_JOB
ENDED_BATCH = states.ENDED_BATCH
ENDED_BECAUSE = states.ENDED_BECAUSE

ModelDetails = market.ModelDetails[int]
Model = market.ModelFields[int]
Candidate = market.ListedCandidate[int]
Provider = market.Provider[int]
Ask = market.Ask[int]
Floor = market.Floor[int]
AllowlistEntry = market.AllowlistEntry

TokenDomain = market.TokenDomain
Authorization = market.Authorization[int, int]
Quote = market.Quote[int, int]
Quoted = market.QuoteFields[int, int]

Posted = jobs.Posted
Cancelled = jobs.Cancelled
JobDetails = jobs.ClientJobDetails[int]
BookRow = jobs.Job[int]
ModelSummary = jobs.ModelSummary[int]
Summary = jobs.SummaryFields[int]


class Job(jobs.ClientJobFields[int], frozen=True):
    """A job as its owner follows it."""


Contracts = chain.Contracts
TokenName = chain.TokenName
Deployment = chain.Deployment[int]
Readiness = chain.ReadinessFields[int]
Session = chain.Session

Evidence = escrow.Evidence
EscrowKey = escrow.Key[Evidence]

FileDetails = files.FileDetails
File = files.FileFields

RequestCounts = batches.RequestCounts
BatchDetails = batches.BatchTerms
Batch = batches.BatchFields
Allocation = batches.PlannedShare[int]
ModelPlan = batches.PlannedModel[int]
OutputDetails = batches.OutputDetails[int]
OutputLine = batches.OutputLine[int]
LineError = batches.LineError
ErrorDetails = batches.ErrorDetails
ErrorLine = batches.ErrorLine
