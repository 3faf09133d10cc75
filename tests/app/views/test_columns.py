"""The columns of tables of jobs."""

from __future__ import annotations

import pytest

from stoker.app.views import columns
from stoker.app.views.columns import COLUMNS
from stoker.app.views.job import JobLine, PastLine
from stoker.app.views.job_details import JobDetails

RECORDS = {"STATUS": JobLine, "HISTORY": PastLine}
PAGE_RECORDS = {"PAGE_JOBS_TABLE": JobLine, "PAGE_HISTORY_TABLE": PastLine}


@pytest.mark.parametrize(
    "table", ["ACTIVE_TABLE", "WAITING_TABLE", "ENDED_TABLE", "HISTORY_TABLE", "TOP_JOBS_TABLE", "TOP_HISTORY_TABLE"]
)
def test_tables_of_terminals(table: str) -> None:
    """Every column of a table has a title and a text, and the first tells the jobs apart."""
    names = [name.rstrip("?") for name in getattr(columns, table)]
    assert names[0] == "id"
    assert all(COLUMNS[name].title and COLUMNS[name].text for name in names)


@pytest.mark.parametrize("front", ["STATUS", "HISTORY"])
@pytest.mark.parametrize("kind", ["PLAIN", "NOTEBOOK"])
def test_tables_of_programs(front: str, kind: str) -> None:
    """Titles differ, and every field is one of the record that the table lists."""
    names = getattr(columns, f"{front}_{kind}")
    assert all(COLUMNS[name].field in RECORDS[front].__struct_fields__ for name in names)
    if kind == "PLAIN":
        assert len({COLUMNS[name].plain for name in names} - {""}) == len(names)


@pytest.mark.parametrize("table", PAGE_RECORDS)
def test_tables_of_the_page(table: str) -> None:
    """Every column has a title, and a field of the record or none, if several make its cell."""
    chosen = [COLUMNS[name] for name in getattr(columns, table)]
    assert all(column.page or column.title for column in chosen)
    assert {column.field for column in chosen} <= {"", *PAGE_RECORDS[table].__struct_fields__}


def test_details_fit_the_tables_of_open_jobs() -> None:
    """`stoker status ID...` lists details with the columns of `stoker status`."""
    assert set(JobLine.__struct_fields__) <= set(JobDetails.__struct_fields__)
