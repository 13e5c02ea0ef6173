"""Types of the coordinator's answers. Amounts are integers instead of the API's decimal strings.

Unknown fields are ignored. Ids, hashes, addresses and keys are 0x-prefixed strings.
"""

from common.api import batches, chain, escrow, files, jobs, market, progress, states, why
from common.api.shapes import Shape

Record = Shape

Purpose = files.Purpose
JobStatus = states.JobStatus
BatchStatus = states.BatchStatus
LIVE_JOB_STATUSES = states.LIVE_JOB_STATUSES
ENDED_JOB_STATUSES = states.ENDED_JOB_STATUSES
ENDED_BATCH_STATUSES = states.ENDED_BATCH_STATUSES
CODE_BY_ENDED_BECAUSE = states.LINE_CODE_BY_END

ModelDetails = market.ModelDetails[int]
Model = market.ModelFields[int]
Candidate = market.ListedCandidate[int]
Provider = market.ProviderFields[int]
Ask = market.AskShape[int]
Reliability = market.Reliability[int]
Floor = market.Floor[int]
AllowlistEntry = market.AllowlistEntry

TokenDomain = market.TokenDomainShape
Authorization = market.Authorization[int, int]
Quote = market.QuoteShape[int, int]
Quoted = market.QuoteFields[int, int]
Checked = market.CheckedFields[int, int]

Posted = jobs.PostedShape
Cancelled = jobs.Cancelled
JobDetails = jobs.ClientJobDetails[int]
BookRow = jobs.JobShape[int]
ModelSummary = jobs.ModelSummary[int]
Summary = jobs.SummaryFields[int]
Why = why.WhyFields[int]
RestsOn = progress.RestsOn
Progress = progress.JobProgress[int]
ProgressStep = progress.ProgressStep[int]


class Job(jobs.ClientJobFields[int], frozen=True):
    """Job as its owner sees it."""


Contracts = chain.ContractsShape
TokenName = chain.TokenName
Deployment = chain.DeploymentFields[int]
Readiness = chain.ReadinessFields[int]
Session = chain.SessionShape

Evidence = escrow.EvidenceShape
EscrowKey = escrow.Key[Evidence]

FileDetails = files.FileDetails
File = files.FileFields

RequestCounts = batches.RequestCounts
BatchDetails = batches.BatchTerms
Batch = batches.BatchFields
Allocation = batches.PlannedShare[int]
ModelPlan = batches.PlannedModelShape[int]
OutputDetails = batches.OutputDetails[int]
OutputLine = batches.OutputLine[int]
LineError = batches.LineError
ErrorDetails = batches.ErrorDetails
ErrorLine = batches.ErrorLine
