"""The features of this installation: each is a directory here, and can be deleted together with its line below.

Nothing else in Stoker names a feature. This module holds names only and imports nothing: each task on a node of a
cluster loads it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class FeatureCommand:
    """A command of the command line."""

    def __init__(self, module: str, sentence: str, after: str) -> None:
        """`sentence` is for the list of commands, `after` the command before it there."""
        self.module = module
        self.sentence = sentence
        self.after = after


class BatchWords:
    """The words for the jobs of a batch that a feature makes."""

    def __init__(self, member: str, coordinator: str) -> None:
        """`coordinator` is the job that ends after all members."""
        self.member = member
        self.coordinator = coordinator


class JobView:
    """A view that `stoker status` shows after an option of its own: of the jobs that its ids name, or of more."""

    def __init__(self, show: str, sentence: str, *, of_ids: bool = True) -> None:
        """`sentence` is the help of the option; without `of_ids` the view is not about chosen jobs."""
        self.show = show
        self.sentence = sentence
        self.of_ids = of_ids


class SharedPage:
    """A page that a user may share with others by `stoker web --NAME`; its file is NAME.html."""

    def __init__(self, reads: str, sentence: str) -> None:
        """`reads` gives all paths of its API, which others may read. `sentence` is the help of the option."""
        self.reads = reads
        self.sentence = sentence


class Elsewhere:
    """How commands are carried to another machine."""

    def __init__(self, forward: str = "", submit: str = "", commands: tuple[str, ...] = ()) -> None:
        """`forward` runs one of the `commands` as it was typed there, `submit` submits jobs there."""
        self.forward = forward
        self.submit = submit
        self.commands = commands


class Feature:
    """The parts of a feature. A function is named by its module and its name, with a colon between them."""

    def __init__(
        self,
        *,
        commands: dict[str, FeatureCommand] | None = None,
        reads: str = "",
        site: str = "",
        nodes: str = "",
        names: dict[str, str] | None = None,
        words: BatchWords | None = None,
        preparation: str = "",
        start: str = "",
        obstacle: str = "",
        bring: str = "",
        code: str = "",
        job_views: dict[str, JobView] | None = None,
        observer: str = "",
        publisher: str = "",
        forgets: str = "",
        checks: dict[str, str] | None = None,
        tables: dict[str, str] | None = None,
        elsewhere: Elsewhere | None = None,
        travel: str = "",
        shared_pages: dict[str, SharedPage] | None = None,
    ) -> None:
        """`reads` gives paths of the page's API, `site` the site of a cluster; `nodes` shows the nodes of a cluster.

        `names` are those of the Python API, each with its module. The setting `kind` of a cluster is the name of the
        feature that has its site; the kind of a batch is that of the feature that made it, which has `words` for it.

        `preparation` prepares the jobs of a submit, `start` the order of an attempt of a prepared job, and `obstacle`
        tells why such a job cannot start. `bring` brings what it needs from a shared directory to a node. `code` tells
        which code it runs.

        `job_views` are by the options of `stoker status`. `observer` hears of each start of a job on a machine;
        `publisher` tells other users what an engine does. `forgets` removes, in steps, files that no job needs any
        more. `checks` are those of `stoker engine check`, by their topics. `shared_pages` are by the options of
        `stoker web`. `tables` check the tables `[SECTION.NAME]` of the configuration, by their sections. `elsewhere`
        carries commands to another machine, and `travel` takes there what jobs need of this one.
        """
        self.commands = commands or {}
        self.reads = reads
        self.site = site
        self.nodes = nodes
        self.names = names or {}
        self.words = words or BatchWords("job", "coordinator")
        self.preparation = preparation
        self.start = start
        self.obstacle = obstacle
        self.bring = bring
        self.code = code
        self.job_views = job_views or {}
        self.observer = observer
        self.publisher = publisher
        self.forgets = forgets
        self.checks = checks or {}
        self.tables = tables or {}
        self.elsewhere = elsewhere or Elsewhere()
        self.travel = travel
        self.shared_pages = shared_pages or {}


FEATURES: dict[str, Feature] = {
    "sweep": Feature(
        commands={
            "sweep": FeatureCommand(
                "stoker.features.sweep.commands.sweep", "Submit many jobs from a parameter space.", "submit"
            )
        },
        reads="stoker.features.sweep.api:reads",
        names=dict.fromkeys(("Sweep", "sweep"), "stoker.features.sweep.python"),
        words=BatchWords("trial", "tuner"),
    ),
    "slurm": Feature(
        commands={
            "cluster": FeatureCommand(
                "stoker.features.slurm.command", "Manage Slurm clusters: the lab's, or your own.", "web"
            )
        },
        site="stoker.features.slurm.site:slurm_config",
        nodes="stoker.features.slurm.status:show_nodes",
    ),
    "compat": Feature(),
    "simulate": Feature(
        commands={
            "simulate": FeatureCommand(
                "stoker.features.simulate.command", "Replay a trace of jobs to compare scheduling policies.", "web"
            )
        }
    ),
    "freeze": Feature(
        commands={
            "diff": FeatureCommand(
                "stoker.features.freeze.diff", "Show how the code has changed since a job was submitted.", "history"
            ),
            "checkout": FeatureCommand(
                "stoker.features.freeze.checkout", "Write the code of a job into a directory.", "history"
            ),
        },
        preparation="stoker.features.freeze.submit:CodeFreezer",
        start="stoker.features.freeze.start:prepare_start",
        obstacle="stoker.features.freeze.start:why_not_startable",
        bring="stoker.features.freeze.start:bring",
        travel="stoker.features.freeze.travel:CodeTraveller",
        code="stoker.features.freeze.code_view:code_state",
        reads="stoker.features.freeze.api:reads",
        job_views={
            "env": JobView(
                "stoker.features.freeze.software_view:show",
                "With ids: show Python, packages (with -a each), driver and GPUs that the jobs started with.",
            )
        },
        observer="stoker.features.freeze.software:SoftwareObserver",
        forgets="stoker.features.freeze.retention:forget",
        checks={"code": "stoker.features.freeze.retention:check"},
    ),
    "lab": Feature(
        commands={
            "usage": FeatureCommand(
                "stoker.features.lab.usage_command", "Show GPU-hours of all users of this machine.", "gpus"
            ),
            "book": FeatureCommand("stoker.features.lab.book", "Keep GPUs free for you at a time.", "preempt"),
            "message": FeatureCommand("stoker.features.lab.message", "Tell all users something.", "gpus"),
        },
        publisher="stoker.features.lab.publisher:LabPublisher",
        checks={"rules": "stoker.features.lab.check:check"},
        job_views={
            "all-users": JobView(
                "stoker.features.lab.screen:show",
                "Show who has which GPUs until when, and who waits.",
                of_ids=False,
            )
        },
        reads="stoker.features.lab.page:reads",
        shared_pages={
            "lab": SharedPage(
                "stoker.features.lab.page:reads",
                "Serve the page of all users of this machine, which others may read.",
            )
        },
    ),
    "servers": Feature(
        commands={
            "servers": FeatureCommand(
                "stoker.features.servers.command", "Use the queues of other servers through ssh.", "web"
            ),
            "fetch": FeatureCommand("stoker.features.servers.fetch", "Copy files of a job from its server.", "logs"),
        },
        tables={"servers": "stoker.features.servers.settings:checked_servers"},
        job_views={
            "servers": JobView(
                "stoker.features.servers.screen:show", "Show all servers of `stoker servers`.", of_ids=False
            )
        },
        elsewhere=Elsewhere(
            "stoker.features.servers.forward:forward",
            "stoker.features.servers.submit:submit_there",
            (
                *("submit", "shell", "status", "history", "logs", "wait", "cancel", "retry", "edit", "preempt"),
                *("pause", "resume", "gpus", "top", "diff"),
            ),
        ),
    ),
    "report": Feature(
        commands={
            "report": FeatureCommand(
                "stoker.features.report.command", "Write an HTML file about a run, a list or a period.", "history"
            )
        }
    ),
}


def feature_commands() -> dict[str, FeatureCommand]:
    """The commands of all features."""
    return {name: command for feature in FEATURES.values() for name, command in feature.commands.items()}


def feature_names() -> dict[str, str]:
    """The names of all features for Python programs, and the module of each."""
    return {name: module for feature in FEATURES.values() for name, module in feature.names.items()}


def job_views() -> dict[str, JobView]:
    """The views of all features, by the options of `stoker status`."""
    return {name: view for feature in FEATURES.values() for name, view in feature.job_views.items()}


def shared_pages() -> dict[str, SharedPage]:
    """The pages of all features that a user may share, by the options of `stoker web`."""
    return {name: page for feature in FEATURES.values() for name, page in feature.shared_pages.items()}


def feature_checks() -> dict[str, str]:
    """The checks of all features, by their topics."""
    return {topic: path for feature in FEATURES.values() for topic, path in feature.checks.items()}


def feature_tables() -> dict[str, str]:
    """The functions that check the tables of all features in the configuration, by their sections."""
    return {section: path for feature in FEATURES.values() for section, path in feature.tables.items()}


def elsewhere() -> Elsewhere:
    """How commands are carried to another machine; without commands if no feature does that."""
    return next((feature.elsewhere for feature in FEATURES.values() if feature.elsewhere.commands), Elsewhere())


def batch_words(kind: str) -> BatchWords:
    """The words for the jobs of a batch; also of one whose feature was deleted."""
    return FEATURES.get(kind, Feature()).words


def preparations() -> list[Any]:
    """The classes that prepare the jobs of a submit."""
    return [load(feature.preparation) for feature in FEATURES.values() if feature.preparation]


_loaded: dict[str, Any] = {}


def load(path: str) -> Any:
    """The function that a feature names."""
    if path not in _loaded:
        import importlib

        module, _, name = path.partition(":")
        _loaded[path] = getattr(importlib.import_module(module), name)
    return _loaded[path]
