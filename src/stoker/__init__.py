"""Stoker keeps GPUs fed."""

from stoker.features import feature_names

__version__ = "0.1.0"

_PLACES = {
    **dict.fromkeys(("params", "progress", "report", "should_stop", "work_dir"), "stoker.python.in_job"),
    **dict.fromkeys(("as_completed", "job", "jobs", "submit", "submit_array", "wait"), "stoker.python.api"),
    **dict.fromkeys(("gpus", "history", "status"), "stoker.python.tables"),
    **feature_names(),
    "Executor": "stoker.python.executor",
    "Job": "stoker.python.job",
    **dict.fromkeys(("JobFailed", "StokerError"), "stoker.core.errors"),
}
"""Names for Python programs, and the modules it comes from when it is first asked for."""

__all__ = ["__version__", *_PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    """Importing the package costs nothing; each part of it comes when it is wanted."""
    if name not in _PLACES:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    value: object = getattr(__import__(_PLACES[name], fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
