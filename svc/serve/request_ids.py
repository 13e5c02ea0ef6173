"""Ids of requests in tabs, in the form JOB/NUMBER. The ledger stores such an id in place of a job's id."""


def tab_request_id(tab_id: str, number: int) -> str:
    """Return the id of a request in a tab.

    >>> tab_request_id("0xab", 7)
    '0xab/7'
    """
    return f"{tab_id}/{number}"


def is_tab_request_id(job_id: str) -> bool:
    return "/" in job_id


def split_tab_request_id(job_id: str) -> tuple[str, int | None]:
    """Return the job's id, and the request's number if the id belongs to a request in a tab.

    >>> split_tab_request_id("0xab/7"), split_tab_request_id("0xab")
    (('0xab', 7), ('0xab', None))
    """
    job, _, number = job_id.partition("/")
    return job, int(number) if number else None


def job_id_members(job_id: str) -> dict[str, str]:
    """Return the fields of the `svc` object that identify a job or a request in a tab.

    >>> job_id_members("0xab/7")
    {'job_id': '0xab', 'tab_request': '7'}
    """
    job, number = split_tab_request_id(job_id)
    return {"job_id": job} if number is None else {"job_id": job, "tab_request": str(number)}


def job_id_headers(job_id: str) -> dict[str, str]:
    """Return `job_id_members` as headers.

    >>> job_id_headers("0xab/7")
    {'x-svc-job-id': '0xab', 'x-svc-tab-request': '7'}
    """
    return {f"x-svc-{name.replace('_', '-')}": text for name, text in job_id_members(job_id).items()}
