from stoker.core.errors import JobFailed as JobFailed
from stoker.core.errors import StokerError as StokerError
from stoker.features.sweep.python import Sweep as Sweep
from stoker.features.sweep.python import sweep as sweep
from stoker.python.api import as_completed as as_completed
from stoker.python.api import job as job
from stoker.python.api import jobs as jobs
from stoker.python.api import submit as submit
from stoker.python.api import submit_array as submit_array
from stoker.python.api import wait as wait
from stoker.python.executor import Executor as Executor
from stoker.python.in_job import on_preempt as on_preempt
from stoker.python.in_job import params as params
from stoker.python.in_job import progress as progress
from stoker.python.in_job import report as report
from stoker.python.in_job import saved as saved
from stoker.python.in_job import should_stop as should_stop
from stoker.python.in_job import work_dir as work_dir
from stoker.python.job import Job as Job
from stoker.python.tables import gpus as gpus
from stoker.python.tables import history as history
from stoker.python.tables import status as status

__version__: str
__all__ = [
    "Executor",
    "Job",
    "JobFailed",
    "StokerError",
    "Sweep",
    "__version__",
    "as_completed",
    "gpus",
    "history",
    "job",
    "jobs",
    "on_preempt",
    "params",
    "progress",
    "report",
    "saved",
    "should_stop",
    "status",
    "submit",
    "submit_array",
    "sweep",
    "wait",
    "work_dir",
]
