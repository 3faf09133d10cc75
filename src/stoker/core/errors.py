"""All errors that a user can meet; each says what happened and what to do."""

from __future__ import annotations

from collections.abc import Iterable

EXIT_CODES = {
    "0": "success",
    "1": "a job failed",
    "2": "wrong usage",
    "3": "the engine cannot be reached or started",
    "4": "no such job",
    "5": "this machine cannot run the job",
    "124": "the time limit of the job or of `wait` was reached",
    "125": "Stoker itself failed",
    "126, 127": "the command cannot be executed, or was not found",
    "128+N": "killed by signal N",
}
"""The meaning of the exit codes of all commands."""


class StokerError(Exception):
    """A problem in one sentence, and a hint on what to do about it."""

    exit_code = 125

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Both in one line, as logs and tracebacks show them."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(StokerError):
    """The command line, a job file or a value in it cannot be understood."""

    exit_code = 2


class NoSuchJob(StokerError):
    """The job asked for is not in this queue."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "", word: str = "") -> None:
        super().__init__(message, hint)
        self.word = word
        """The id or name that no job has; empty if the job exists."""


class Impossible(StokerError):
    """This machine can never meet the request."""

    exit_code = 5


class JobFailed(StokerError):
    """A job that a Python program waited for has no result."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "", job: int = 0, log: str = "") -> None:
        super().__init__(message, hint)
        self.job = job
        """Its id."""
        self.log = log
        """Path of its log; empty if there is none."""


def did_you_mean(word: str, choices: Iterable[str], otherwise: str) -> str:
    """A hint: the known word that is nearest to a mistyped one, else `otherwise`."""
    near = nearest(word, choices)
    return f"did you mean {near}?" if near else otherwise


def nearest(word: str, choices: Iterable[str]) -> str:
    """The known word that is nearest to a mistyped one; empty if none is near."""
    import difflib  # slow to load

    return next(iter(difflib.get_close_matches(word, list(choices), 1)), "")
