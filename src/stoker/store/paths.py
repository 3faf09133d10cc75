"""The state directory of a user, and every path in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.core.errors import StokerError
from stoker.core.units import LAST_GPUS

NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs lustre gpfs beegfs ceph glusterfs fuse.glusterfs fuse.sshfs afs 9p pvfs2".split()  # noqa: SIM905
)

_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)

SIMULATED = "-simulated"
"""How the name of the state directory of simulated GPUs ends."""

UNREADABLE = (OSError, ValueError, RecursionError, msgspec.MsgspecError)
"""Errors that reading and decoding a damaged file can raise; bytes that are not UTF-8 are a ValueError."""

UNFINISHED = ".new-"
"""Prefix of a folder in `functions` whose job is not in the queue yet."""


class Paths(Struct, frozen=True):
    """All paths of one user's state. No other module joins paths below the state directory."""

    state: Path
    note: str = ""
    """A notice about the choice of the directory."""
    gpus: str = ""
    """The simulated GPUs that the user typed (`--sim`, STOKER_SIM), for a new engine; empty leaves it those it had."""

    @property
    def is_simulated(self) -> bool:
        return self.state.name.endswith(SIMULATED)

    @property
    def other(self) -> Paths:
        """The state of the simulated GPUs, or from there that of the real ones; it may not exist."""
        name = self.state.name
        return Paths(self.state.with_name(name.removesuffix(SIMULATED) if self.is_simulated else name + SIMULATED))

    @property
    def database(self) -> Path:
        return self.state / "queue.db"

    @property
    def workers(self) -> Path:
        """One folder per worker."""
        return self.state / "workers"

    @property
    def damaged_journals(self) -> Path:
        """Copies of workers' journals that could not be read."""
        return self.state / "damaged"

    @property
    def engines(self) -> Path:
        """Locks, wake FIFOs and status files of engines."""
        return self.state / "engines"

    def status_file(self, engine: str) -> Path:
        return self.engines / f"{engine}.status"

    @property
    def log(self) -> Path:
        """Log of the background engine."""
        return self.state / "engine.log"

    @property
    def restart(self) -> Path:
        """How to start the background engine again after it was killed; workers read it too."""
        return self.state / "engine.restart"

    @property
    def logs(self) -> Path:
        """Output of jobs that have no directory of their own."""
        return self.state / "logs"

    @property
    def functions(self) -> Path:
        """Submitted Python functions and their results: a folder per job or array."""
        return self.state / "functions"

    def function(self, job_id: int) -> Path:
        """The folder of a job that runs a function, or of an array by the id of its first task."""
        return self.functions / str(job_id)

    @property
    def reports(self) -> Path:
        """Reports of jobs by `stoker.report()`: one file per job."""
        return self.state / "reports"

    def report(self, job_id: int) -> Path:
        return self.reports / f"{job_id}.jsonl"

    @property
    def batches(self) -> Path:
        """Files of features about their batches: one folder per batch, which is removed with it."""
        return self.state / "batches"

    def batch(self, first_job: int) -> Path:
        """The folder of a batch, by the id that users name it by."""
        return self.batches / str(first_job)

    @property
    def software(self) -> Path:
        """Records of what jobs ran with: Python, packages, driver."""
        return self.state / "software"

    @property
    def scripts(self) -> Path:
        """Copies of scripts that jobs run: one folder per digest."""
        return self.state / "scripts"

    @property
    def servers(self) -> Path:
        """The last known states of other servers, and jobs on their way to them."""
        return self.state / "servers"

    @property
    def identity(self) -> Path:
        """A file with a name for this queue that no other queue has."""
        return self.state / "queue.id"

    def on(self, cluster: str) -> Paths:
        """Where files of jobs are that nodes of a cluster see too; for this machine, here."""
        if not cluster:
            return self
        link = self._shared(cluster)
        with contextlib.suppress(OSError):
            return Paths(Path(os.readlink(link)))
        return Paths(link)

    def share(self, cluster: str, shared: Path) -> Paths:
        """Let files of jobs on a cluster be in a directory of this queue's own below the shared one."""
        link, target = self._shared(cluster), shared / identity_of(self)
        if not link.is_symlink() or os.readlink(link) != str(target):
            link.parent.mkdir(mode=0o700, exist_ok=True)
            made = link.with_name(f".{cluster}.{os.getpid()}")
            made.symlink_to(target)
            made.replace(link)
        return Paths(target)

    @property
    def everywhere(self) -> list[Paths]:
        """This machine and all clusters that jobs were submitted to."""
        return [self, *(self.on(link.name) for link in self._shared("").glob("[!.]*"))]

    def engine_log(self, cluster: str) -> Path:
        """Log of a background engine."""
        return self.state / f"engine-{cluster}.log" if cluster else self.log

    def _shared(self, cluster: str) -> Path:
        return self.state / "clusters" / cluster

    def script(self, digest: str, name: str) -> Path:
        return self.scripts / digest / name

    @property
    def code(self) -> Path:
        """Snapshots of the code of jobs."""
        return self.state / "code"

    def tasklist(self, name: str) -> Path:
        """Progress of the older tool priority_scheduler with one of its files."""
        return self.state / "tasklists" / name

    @property
    def web_token(self) -> Path:
        """The secret of the web page's links."""
        return self.state / "web.token"

    def page_server(self, page: str) -> Path:
        """Locked by the running server of a page, `web` or a shared one; tells its address."""
        return self.state / f"{page}.server"

    def page_passes(self, page: str) -> Path:
        """The passes of a shared page."""
        return self.state / f"{page}.passes"

    @property
    def web_entrance(self) -> Path:
        """A file that leads a local browser to the web page."""
        return self.state / "web.html"

    @property
    def simulator(self) -> Path:
        """Files by which simulated jobs and devices communicate."""
        return self.state / "simulator"


def identity_of(paths: Paths) -> str:
    """The name of this queue, made on first use: several hosts may share a home."""
    with contextlib.suppress(FileNotFoundError):
        return paths.identity.read_text().strip()
    made = paths.identity.with_suffix(f".{os.getpid()}")
    made.write_text(f"{host_name().partition('.')[0]}-{os.urandom(4).hex()}\n")
    with contextlib.suppress(FileExistsError):
        os.link(made, paths.identity)
    made.unlink()
    return paths.identity.read_text().strip()


def make_durable(folder: Path) -> None:
    """Write the names in a directory to disk, so that they survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(tree: Path) -> None:
    """Remove a directory with all that is in it, also if its directories cannot be written to."""
    if not tree.exists():
        return
    for folder, _, _ in os.walk(tree):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(tree, ignore_errors=True)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step, also if the machine crashes."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)  # left by a process that was killed
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    make_durable(path.parent)


PROBE = 64 * 1024
"""Bytes that an engine needs to write its status file."""


def write_problem(folder: Path) -> str:
    """Why a directory cannot be written to, as on a full disk; empty if it can."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, PROBE)
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError as error:
        return f"{folder} cannot be written to: {error.strerror}"
    return ""


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Take a lock unless another process holds it."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def find_paths(
    environment: Mapping[str, str],
    host: str,
    *,
    simulated: bool,
    mountinfo: str = "/proc/self/mountinfo",
    spare: Path = Path("/var/tmp"),
) -> Paths:
    """The state directory, created private. Simulated GPUs have a separate one.

    Without a home that is local and can be written to, it is in `spare`, which outlives a reboot.
    """
    leaf = f"{host}{SIMULATED}" if simulated else host
    if chosen := environment.get("STOKER_STATE"):
        state = Path(chosen).absolute() / leaf
        _make_private(state)
        return Paths(state)
    if problem := _unsuitable(home := _home_of_state(), leaf, mountinfo):
        local = spare / f"stoker-{os.getuid()}" / leaf
        _make_private(local.parent)  # another user could have created it
        _make_private(local)
        return Paths(local, f"{problem}; the queue is in {local}")
    assert home is not None
    return Paths(home / leaf)


def user_home() -> Path:
    """The home of this user, for files that belong nowhere else."""
    try:
        return Path.home()
    except RuntimeError:
        raise StokerError("there is no home directory", "set HOME") from None


def _home_of_state() -> Path | None:
    """Where the state of this user belongs; None without a home, as for a user id that has no entry."""
    from platformdirs import user_state_path

    try:
        return user_state_path("stoker", appauthor=False)
    except RuntimeError:
        return None


def _unsuitable(home: Path | None, leaf: str, mountinfo: str) -> str:
    """Why the queue cannot be in the home; empty after its directory was made there."""
    if home is None:
        return "there is no home directory"
    state = home / leaf
    if (kind := file_system_of(state, mountinfo)) in NETWORK_FILE_SYSTEMS:
        return f"{state} is on {kind}, which is not safe for a queue"
    try:
        _make_private(state)
    except StokerError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _NOT_WRITABLE:
            raise
        return f"{state} cannot be created ({error.__cause__.strerror})"
    return "" if os.access(state, os.W_OK) else f"{state} cannot be written to"


def file_system_of(path: Path, mountinfo: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that holds the path, or would hold it once it exists."""
    wanted = _existing(path).resolve()
    best, kind = -1, ""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            # The kernel writes blanks and backslashes as octal escapes.
            mount_point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), before.split(" ")[4]))
            if wanted.is_relative_to(mount_point) and len(mount_point.parts) >= best:
                best, kind = len(mount_point.parts), after.split()[0]
    return kind


def _existing(path: Path) -> Path:
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def _make_private(state: Path) -> None:
    try:
        state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        state.mkdir(mode=0o700, exist_ok=True)
        status = state.lstat()
    except OSError as error:
        raise StokerError(
            f"cannot create the state directory {state}: {error.strerror}",
            "set STOKER_STATE to your own local directory",
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StokerError(
            f"{state} belongs to another user, or is not a directory",
            "set STOKER_STATE to your own directory",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        state.chmod(0o700)


def host_name() -> str:
    """The result of socket.gethostname(), without the import of socket."""
    return os.uname().nodename


def paths_for(typed: str | None = None) -> Paths:
    """The state directory of this user on this host; that of simulated GPUs after `--sim`, or if STOKER_SIM is set.

    `typed` is the value of `--sim`, and `LAST_GPUS` if it has none.
    """
    gpus = (typed if typed != LAST_GPUS else None) or os.environ.get("STOKER_SIM", "")
    paths = find_paths(os.environ, host_name(), simulated=bool(typed or gpus))
    return msgspec.structs.replace(paths, gpus=gpus)
