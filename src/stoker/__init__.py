"""Stoker keeps GPUs fed."""

__version__ = "0.1.0"

_PLACES = {
    **dict.fromkeys(
        ("on_preempt", "params", "progress", "report", "saved", "should_stop", "work_dir"), "stoker.python.in_job"
    ),
    **dict.fromkeys(("as_completed", "job", "jobs", "submit", "submit_array", "wait"), "stoker.python.api"),
    **dict.fromkeys(("gpus", "history", "status"), "stoker.python.tables"),
    "Executor": "stoker.python.executor",
    "Job": "stoker.python.job",
    **dict.fromkeys(("JobFailed", "StokerError"), "stoker.core.errors"),
}
"""Names for Python programs, and the module that each comes from when it is first asked for."""


def __getattr__(name: str) -> object:
    """Importing the package costs nothing; each part of it comes when it is wanted."""
    place = _PLACES.get(name) or _feature_places().get(name)
    if name == "__all__":
        value: object = __dir__()
    elif place is None:
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
    else:
        value = getattr(__import__(place, fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *_PLACES, *_feature_places()])


def _feature_places() -> dict[str, str]:
    from stoker.features import feature_names  # a program that only reports values never needs it

    return feature_names()
