"""A table of jobs by id in which one entry may stand for several jobs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from stoker.core.job import Job, part


class JobsById:
    """Jobs by their ids, where one entry may stand for several jobs."""

    __slots__ = ("_firsts", "_size", "entries")

    def __init__(self) -> None:
        self.entries: dict[int, Job] = {}
        """By their first ids; they do not overlap."""
        self._firsts: list[int] = []
        """Sorted, of the entries that stand for several jobs."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and self.entry(job_id) is not None

    def entry(self, job_id: int) -> Job | None:
        """The entry that stands for a job, among others."""
        if (job := self.entries.get(job_id)) is not None or not self._firsts:
            return job
        at = bisect_right(self._firsts, job_id) - 1
        job = self.entries[self._firsts[at]] if at >= 0 else None
        return job if job is not None and job_id <= job.last else None

    def get(self, job_id: int) -> Job | None:
        """The job by itself."""
        job = self.entry(job_id)
        return None if job is None else part(job, job_id, job_id)

    def between(self, first: int, last: int) -> list[Job]:
        """The jobs with ids in a range, sorted; entries that begin or end elsewhere are cut."""
        at = bisect_right(self._firsts, first) - 1
        several = [self.entries[job_id] for job_id in self._firsts[max(0, at) : bisect_right(self._firsts, last)]]
        if last - first < len(self.entries):
            single_ones = [job for job_id in range(first, last + 1) if (job := self.entries.get(job_id))]
        else:
            single_ones = [job for job_id, job in self.entries.items() if first <= job_id <= last]
        jobs = {job.id: part(job, first, last) for job in (*several, *single_ones) if job.last >= first}
        return sorted(jobs.values(), key=lambda job: job.id)

    def add(self, job: Job) -> None:
        self.entries[job.id] = job
        self._size += job.count
        if job.count > 1:
            insort(self._firsts, job.id)

    def remove(self, job_id: int, count: int = 1) -> tuple[Job, list[Job]] | None:
        """Take jobs out of their entry, and return that entry and its remaining parts; None if they are not here."""
        entry = self.entry(job_id)
        if entry is None:
            return None
        assert job_id + count - 1 <= entry.last
        del self.entries[entry.id]
        self._size -= entry.count
        if entry.count == 1:
            return entry, []
        del self._firsts[bisect_left(self._firsts, entry.id)]
        left = [part(entry, entry.id, job_id - 1)] if entry.id < job_id else []
        left += [part(entry, job_id + count, entry.last)] if job_id + count <= entry.last else []
        for rest in left:
            self.add(rest)
        return entry, left
