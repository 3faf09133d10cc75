"""The one family of errors that a user can meet; each says what happened and what to type next."""


class StokerError(Exception):
    """What went wrong in one sentence, and a hint on what to do about it."""

    exit_code = 125

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(StokerError):
    """The command line, a job file or a value in it cannot be understood."""

    exit_code = 2


class NoSuchJob(StokerError):
    """The job asked for is not in this queue."""

    exit_code = 4


class Impossible(StokerError):
    """The need can never be met on this machine."""

    exit_code = 5
