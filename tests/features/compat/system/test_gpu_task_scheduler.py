"""GPUTaskScheduler: its document typed out, scripts like those that were published, and its defects."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from features.compat.gpu_tasks import Lab, script
from stoker.features.compat.gpu_task import instance
from stoker.features.compat.gpu_task.instance import MARKER
from support.disk import fill, small_disk

CONFIG = """\
config = {
    "scheduler_config": {
        "gpu": ["0", "1", "2"]
    },

    "global_config": {
        "num_run": 5,
        "num_epoch": 200,
    },

    "test_config": [
        {
            "method": ["GAN", "ALI"],
            "num_packing": [1],
            "num_zmode": [1]
        },
        {
            "method": ["WGAN"],
            "num_packing": [3],
            "num_zmode": [1, 2]
        }
    ]
}
"""
TASK = """\
import os
from gpu_task_scheduler.gpu_task import GPUTask


class MyGPUTask(GPUTask):
    def main(self):
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        with open(os.path.join(self._work_dir, "result.txt"), "w") as f:
            f.write("{} {}".format(gpu, sorted(self._config.items())))
        print("ran on", gpu)
"""
RUNNING = """\
from config import config
from my_gpu_task import MyGPUTask
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
scheduler = GPUTaskScheduler(config = config, gpu_task_class = MyGPUTask)
scheduler.start()
"""
HOSTILE = 'it\'s "a" place & k=v, 100%j `x` \\'
NAMES = [
    "method-ALI,num_packing-1,num_zmode-1,",
    "method-GAN,num_packing-1,num_zmode-1,",
    "method-WGAN,num_packing-3,num_zmode-1,",
    "method-WGAN,num_packing-3,num_zmode-2,",
]


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


@pytest.fixture
def hostile_lab(tmp_path: Path) -> Lab:
    (tmp_path / HOSTILE).mkdir()
    return Lab(tmp_path / HOSTILE)


# -- the document ----------------------------------------------------------------------------------


def test_document(hostile_lab: Lab) -> None:
    """The example of the document runs as typed, wherever it is, and leaves the folders and logs it promises."""
    lab = hostile_lab
    lab.write(config=CONFIG, my_gpu_task=TASK, main=RUNNING)
    code, output, errors = lab.python("main.py")
    assert (code, output) == (0, "")
    assert lab.folders() == NAMES
    assert lab.unfinished() == []
    gpu, _, config = lab.text(f"results/{NAMES[3]}/result.txt").partition(" ")
    assert gpu in "012"
    assert config == str([("method", "WGAN"), ("num_epoch", 200), ("num_packing", 3), ("num_run", 5), ("num_zmode", 2)])
    assert lab.text(f"results/{NAMES[3]}/worker.log") == f"ran on {gpu}\n"
    check_log(lab.text("scheduler.log").splitlines(), "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9: ]{13}", True)
    check_log(errors.splitlines(), "[-0-9]{10} [:0-9]{8},[0-9]{3}", False)
    assert list((lab.directory / "temp").iterdir()) == []


def check_log(lines: list[str], date: str, with_place: bool) -> None:
    """Each instance is received and finished by the same worker, and each worker finishes at the end."""
    place = r" gpu_task_scheduler\.py\[line:(46|53|93)\]" if with_place else ""
    said = [re.sub(f"^{date}{place} INFO ", "", line) for line in lines]
    assert said[-3:] == ["gpu0 finished", "gpu1 finished", "gpu2 finished"]
    begun = sorted(line.replace(" receives ", " ") for line in said if " receives " in line)
    ended = sorted(line.replace(" finishes ", " ") for line in said if " finishes " in line)
    assert begun == ended
    assert sorted(line.rpartition(" ")[2] for line in begun) == NAMES
    assert len(said) == 11


def test_document_again(lab: Lab) -> None:
    """A second run of the script skips all instances; with force_rerun it runs all of them anew."""
    lab.write(config=CONFIG, my_gpu_task=TASK, main=RUNNING)
    lab.python("main.py")
    stale = lab.directory / "results" / NAMES[0] / "result.txt"
    stale.write_text("stale")
    code, _, errors = lab.python("main.py")
    assert (code, errors.count("skips task"), stale.read_text()) == (0, 4, "stale")
    lab.write(config=CONFIG.replace('"gpu"', '"force_rerun": True, "gpu"'))
    code, _, errors = lab.python("main.py")
    assert (code, errors.count("skips task"), errors.count("finishes task")) == (0, 0, 4)
    assert stale.read_text() != "stale"
    assert len(lab.text(f"results/{NAMES[0]}/worker.log").splitlines()) == 1


# -- scripts like those that were published ----------------------------------------------------------

PUBLISHED_TASK = """\
from gpu_task_scheduler.gpu_task import GPUTask
import helper_beside_the_script
from .network import depth


class GenerateTask(GPUTask):
    def required_env(self):
        return {"LD_LIBRARY_PATH": "/opt/cuda/lib64"}

    def main(self):
        import json, os, sys
        assert sys.path.index(os.getcwd()) >= 3
        with open(os.path.join(self._work_dir, "metrics.json"), "w") as f:
            json.dump({"gpu": os.environ["CUDA_VISIBLE_DEVICES"], "path": os.environ["LD_LIBRARY_PATH"],
                       "depth": depth, "lr": self._config["lr"], "epoch": self._config["epoch"],
                       "work_dir": self._work_dir}, f)
"""
PUBLISHED_CONFIG = """\
config = {
    "scheduler_config": {
        "gpu": [["0", "1"], "2"],
        "config_string_value_maxlen": 1000,
        "result_root_folder": "../results/",
        "scheduler_log_file_path": None,
        "ignored_keys_for_folder_name": ["extra_checkpoint_freq", "epoch"]
    },
    "global_config": {"batch_size": 100, "vis_freq": 200},
    "test_config": [
        {"dataset": ["web", "google"], "epoch": [400], "run": [0, 1], "lr": [1e-3], "extra_checkpoint_freq": [5]}
    ]
}
"""
PUBLISHED_MAIN = """\
import sys
sys.path.append("..")
if __name__ == "__main__":
    from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
    from models.generate_task import GenerateTask
    from config_generate import config
    scheduler = GPUTaskScheduler(config=config, gpu_task_class=GenerateTask)
    scheduler.start()
"""
PUBLISHED_COLLECTING = """\
import json, os
from config_generate import config
from gpu_task_scheduler.config_manager import ConfigManager
manager = ConfigManager(config)
while manager.get_num_left_config() > 0:
    one = manager.get_next_config()
    with open(os.path.join(one["work_dir"], "metrics.json")) as f:
        metrics = json.load(f)
    print(one["test_config_string"], metrics["gpu"] in ("0,1", "2"), metrics["path"], metrics["depth"],
          metrics["lr"] == one["config"]["lr"], metrics["work_dir"] == one["work_dir"], one["config"]["batch_size"])
"""


def test_published_style(lab: Lab) -> None:
    """Dotted modules, relative imports and folders, pairs of GPUs, and results collected by ConfigManager work."""
    scripts = lab.directory / "scripts"
    (lab.directory / "models").mkdir()
    scripts.mkdir()
    (lab.directory / "models" / "network.py").write_text("depth = 3\n")
    (lab.directory / "models" / "generate_task.py").write_text(PUBLISHED_TASK)
    (scripts / "helper_beside_the_script.py").touch()
    (scripts / "config_generate.py").write_text(PUBLISHED_CONFIG)
    (scripts / "main_generate.py").write_text(PUBLISHED_MAIN)
    (scripts / "collect.py").write_text(PUBLISHED_COLLECTING)
    done = lab.typed(f"cd scripts && {sys.executable} main_generate.py 2> said && {sys.executable} collect.py")
    text = "dataset-{},epoch-400,extra_checkpoint_freq-5,lr-0.001,run-{}, True /opt/cuda/lib64 3 True True 100"
    expected = [text.format(dataset, run) for dataset in ("web", "google") for run in (0, 1)]
    assert done.stdout.decode().splitlines() == expected, lab.text("scripts/said")
    assert lab.folders() == [f"dataset-{name},lr-0.001,run-{run}," for name in ("google", "web") for run in (0, 1)]
    assert not (scripts / "scheduler.log").exists()
    assert re.match(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z]\S+ [0-9: ]{13} INFO gpu(0,1|2) receives", lab.text("scripts/said"))


# -- what a task finds -----------------------------------------------------------------------------


def test_surroundings_of_a_task(lab: Lab) -> None:
    """Directory, standard input, matplotlib's backend, unbuffered output, its job id, and its marker are as said."""
    lab.environment["MPLBACKEND"] = "module://nonsense"
    body = (
        "print(os.getcwd() == os.path.dirname(__file__), sys.path[-1], sys.stdin.read())\n"
        "print(os.environ['MPLBACKEND'], os.environ['PYTHONUNBUFFERED'], os.environ['CUDA_DEVICE_ORDER'])\n"
        "print(os.environ['STOKER_JOB_NAME'], sorted(os.listdir(self._work_dir)), self._work_dir)"
    )
    lab.run_tasks(body, '"scheduler_config": {"gpu": ["0"], "result_root_folder": "out"}, "test_config": [{"a": [1]}]')
    assert lab.text("out/a-1,/worker.log").splitlines() == [
        f"True {lab.directory} ",
        "Agg 1 PCI_BUS_ID",
        f"a-1, {[MARKER, 'worker.log']} out/a-1,",
    ]
    name = lab.typed("stoker history --json | python -c 'import json, sys; print(json.load(sys.stdin)[\"jobs\"][0])'")
    assert b"'name': 'a-1,'" in name.stdout, name


REQUIRING = """\
import os, sys
from gpu_task_scheduler.gpu_task import GPUTask

with open("imports", "a") as f:
    f.write(os.environ.get("CUDA_VISIBLE_DEVICES", "none") + "\\n")


class Task(GPUTask):
    def required_env(self):
        assert os.path.isdir(self._work_dir)
        self.asked = os.environ["CUDA_VISIBLE_DEVICES"]
        if self._config["lock"]:
            self.lock = open(os.devnull)
        needed = {"OMP_NUM_THREADS": 4, "PYTHONHASHSEED": "7", "MPLBACKEND": "svg"}
        return needed if self._config["needs"] else {}

    def main(self):
        seed = hash("x") if self._config["needs"] else 0
        print(os.environ.get("OMP_NUM_THREADS"), os.environ["MPLBACKEND"], getattr(self, "asked", "anew"), seed,
              "STOKER_GPU_TASK" in os.environ)
"""


def test_required_env(lab: Lab) -> None:
    """It is asked in the instance's own process, with its GPUs set, and what it wants is there when Python starts."""
    instances = '[{"needs": [1], "lock": [0, 1]}, {"needs": [0], "lock": [0]}]'
    lab.write(task=REQUIRING, script=script(f'"scheduler_config": {{"gpu": ["5"]}}, "test_config": {instances}'))
    assert lab.python("script.py")[0] == 0
    seed = subprocess.check_output(
        [sys.executable, "-c", "print(hash('x'))"], env={"PYTHONHASHSEED": "7"}, text=True, timeout=60
    )
    assert lab.text("results/lock-0,needs-1,/worker.log") == f"4 svg 5 {seed.strip()} False\n"
    assert lab.text("results/lock-1,needs-1,/worker.log") == f"4 svg anew {seed.strip()} False\n"
    assert lab.text("results/lock-0,needs-0,/worker.log") == "None Agg 5 0 False\n"
    assert lab.text("imports").splitlines() == ["none", "5", "5", "5", "5", "5"]
    assert list((lab.directory / "temp").iterdir()) == []


def test_tasks_start_light(lab: Lab) -> None:
    """The process of an instance loads next to nothing besides what the task itself wants."""
    lab.run_tasks("print(*sys.modules)", '"scheduler_config": {"gpu": ["0"]}, "test_config": [{"a": [1]}]')
    loaded = set(lab.text("results/a-1,/worker.log").split())
    assert "gpu_task_scheduler.gpu_task" in loaded
    assert loaded.isdisjoint({"msgspec", "pickle", "typing", "re", "subprocess", "logging", "multiprocessing", "json"})


def test_scheduler_is_light() -> None:
    """Importing the library loads none of the engine and nothing that asks a driver."""
    program = (
        "import sys, gpu_task_scheduler.gpu_task_scheduler; print({'msgspec', 'sqlite3', 'pynvml'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "set()\n"


# -- another Python --------------------------------------------------------------------------------

OTHER_TASK = """\
import helper
import os
import sys
from gpu_task_scheduler.gpu_task import GPUTask


class Task(GPUTask):
    def required_env(self):
        return {"OMP_NUM_THREADS": "4"}

    def main(self):
        try:
            import msgspec
        except ImportError:
            print(sys.prefix, os.environ["OMP_NUM_THREADS"], helper.value, self._config, "stoker" in sys.modules)
"""
OTHER_CONFIG = '"scheduler_config": {"gpu": ["0"], "python": "../other/bin/python"}, "test_config": [{"a": [1]}]'


def test_instances_under_another_python(lab: Lab) -> None:
    """The key `python` names the interpreter of the instances, which needs neither Stoker nor its libraries."""
    other = lab.directory.parent / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], timeout=60, check=True)
    lab.write(helper="value = 5\n", task=OTHER_TASK, script=script(OTHER_CONFIG))
    assert lab.python("script.py")[0] == 0
    expected = f"{other} 4 5 {{'a': 1}} False\n"
    assert lab.text("results/a-1,/worker.log") == expected
    guarded = script(OTHER_CONFIG, "start(raise_on_failure=True)").replace("from task import Task\n", "")
    lab.write(script=OTHER_TASK + guarded.replace('"gpu"', '"force_rerun": True, "gpu"'))
    assert lab.python("script.py")[0] == 0
    assert lab.text("results/a-1,/worker.log") == expected


def test_another_python_may_be_old() -> None:
    """The file that runs instances is one that Python 3.6 can read, and needs only modules that it has."""
    tree = ast.parse(Path(instance.__file__).read_text(), feature_version=(3, 6))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {name.name for node in statements if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in statements if isinstance(node, ast.ImportFrom)}
    assert imported == {"fcntl", "importlib.machinery", "os", "sys", "time", "types", "_pickle", "pickle", "typing"}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ('"no-such-python"', "there is no program 'no-such-python', which scheduler_config names as python"),
        ("sys.executable", "define class and parameters at the top of a file that is imported: another Python can"),
    ],
)
def test_another_python_that_cannot_be_used(lab: Lab, key: str, said: str) -> None:
    """An interpreter that is not there, and values that only this Python can read, are refused at the start."""
    config = f'"scheduler_config": {{"gpu": ["0"], "python": {key}}}, "test_config": [{{"a": [lambda: 1]}}]'
    lab.write(task=OTHER_TASK, helper="value = 5\n", script="import sys\n" + script(config))
    code, _, errors = lab.python("script.py")
    assert (code, said in errors) == (1, True), errors


# -- GPUs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        ('["0", "0"]', ["0", "0"]),
        ('["0", ["2", "3"], "GPU-8f2b"]', ["0", "2,3", "GPU-8f2b"]),
    ],
)
def test_gpu_entries(lab: Lab, gpus: str, seen: list[str]) -> None:
    """Each entry, also one that is listed twice, runs an instance beside the others, which sees just its own GPUs."""
    body = (
        "import time\n"
        "open('started-%s' % self._config['i'], 'w').close()\n"
        f"while not all(os.path.exists('started-%d' % i) for i in range({len(seen)})): time.sleep(0.01)\n"
        "print(self._config['i'], os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    numbers = range(len(seen))
    errors = lab.run_tasks(body, f'"scheduler_config": {{"gpu": {gpus}}}, "test_config": [{{"i": {list(numbers)}}}]')
    assert [lab.text(f"results/i-{i},/worker.log") for i in numbers] == [f"{i} {seen[i]}\n" for i in numbers]
    assert all(f"gpu{gpu} receives task i-" in errors for gpu in seen)
    assert errors.count("gpu0 finished") == seen.count("0")


# -- what is run, and what is not --------------------------------------------------------------------

FAILING = (
    "print('trying', self._config['i'])\nif self._config['i'] % 2 and not os.path.exists('mended'): sys.exit('no luck')"
)
FOUR = '"scheduler_config": {"gpu": ["0"]}, "test_config": [{"i": [0, 1, 2, 3]}]'


def test_failures_are_told_and_run_again(lab: Lab) -> None:
    """Failures are told at the end with folder and last line; the next time they are run again, and only they."""
    errors = lab.run_tasks(FAILING, FOUR)
    root = lab.directory / "results"
    assert errors.splitlines()[-3:] == [
        f"gpu_task_scheduler: exit 1: {root}/i-1,: no luck",
        f"gpu_task_scheduler: exit 1: {root}/i-3,: no luck",
        "gpu_task_scheduler: 2 instances failed; run this script again to retry them",
    ]
    assert errors.count("finishes task") == 4
    assert lab.unfinished() == ["i-1,", "i-3,"]
    (lab.directory / "mended").touch()
    errors = lab.run_tasks(FAILING, FOUR)
    assert "gpu_task_scheduler: 2 instances failed or did not finish before; retrying" in errors
    assert (errors.count("skips task"), errors.count("finishes task")) == (2, 2)
    assert lab.unfinished() == []
    assert lab.text("results/i-1,/worker.log") == "trying 1\n"


def test_failures_are_raised_if_asked(lab: Lab) -> None:
    """start(raise_on_failure=True), or the same in scheduler_config, raises at the end, after all have run."""
    wanted = FOUR.replace('"gpu"', '"raise_on_failure": True, "gpu"')
    lab.run_tasks(FAILING, FOUR)
    for config, start in ((FOUR, "start(raise_on_failure=True)"), (wanted, "start()")):
        lab.write(
            script="from task import Task\n"
            "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler, InstancesFailed\n"
            f"try: GPUTaskScheduler(config={{{config}}}, gpu_task_class=Task).{start}\n"
            "except InstancesFailed as error: print(error, [failure.last_line for failure in error.failures])\n"
        )
        _, output, _ = lab.python("script.py")
        expected = f"2 instances failed, the first with exit 1 in {lab.directory}/results/i-1,"
        hint = "the next start() of a new scheduler runs them again"
        assert output == f"{expected}; {hint} ['no luck', 'no luck']\n"


def test_folders_of_the_older_library_count_as_done(lab: Lab) -> None:
    """A folder without our marker is skipped, whatever is in it."""
    (lab.directory / "results" / "i-1,").mkdir(parents=True)
    errors = lab.run_tasks("print('ran')", FOUR)
    assert "gpu0 receives task i-1,\n" in errors
    assert "gpu0 skips task i-1,\n" in errors
    assert (lab.text("results/i-0,/worker.log"), lab.text("results/i-1,/worker.log")) == ("ran\n", "")


@pytest.mark.parametrize("force", [False, True])
def test_instances_listed_twice(lab: Lab, force: bool) -> None:
    """An instance that two dictionaries give is run once; with force_rerun so often, but never beside itself."""
    body = "os.mkdir('busy')\nopen('runs', 'a').write('x')\nos.rmdir('busy')"
    config = f'"scheduler_config": {{"gpu": ["0", "1"], "force_rerun": {force}}}, "test_config": [{{"a": [1]}}] * 2'
    errors = lab.run_tasks(body, config)
    assert (lab.text("runs"), errors.count("skips task")) == (("xx", 0) if force else ("x", 1))
    assert "failed" not in errors
    assert "different" not in errors


def test_collisions_are_told(lab: Lab) -> None:
    """Different instances whose folder is the same after truncation are told; only the first is run."""
    config = (
        '"scheduler_config": {"gpu": ["0"], "config_string_value_maxlen": 2}, "test_config": [{"a": ["xxy", "xxz"]}]'
    )
    errors = lab.run_tasks("print(self._config['a'])", config)
    expected = (
        f"gpu_task_scheduler: 2 different instances have the folder {lab.directory}/results/a-xx,: only the first"
    )
    assert expected in errors
    assert lab.text("results/a-xx,/worker.log") == "xxy\n"


def test_slashes_and_no_parameters(lab: Lab) -> None:
    """A slash makes folders within folders; without test_config the root is the folder; log_file None keeps no log."""
    config = '"scheduler_config": {"gpu": ["0"], "log_file": None}, "test_config": [{"data": ["web/google"]}, {}]'
    lab.run_tasks("print('x')", config)
    assert (lab.directory / "results" / "data-web" / "google,").is_dir()
    assert lab.run_tasks("print('x')", '"scheduler_config": {"gpu": ["0"], "result_root_folder": "r"}')
    assert lab.text("r/worker.log") == "x\n"


def test_ways_to_end(lab: Lab) -> None:
    """Whatever ends a task, its exit code decides whether it is run again."""
    body = (
        "import atexit, shutil\n"
        "how = self._config['how'] if not os.path.exists('again') else 'well'\n"
        "if how == 'killed': os.kill(os.getpid(), 9)\n"
        "if how == 'left': sys.exit(0)\n"
        "if how == 'gone': os._exit(0)\n"
        "if how == 'deleted': shutil.rmtree(self._work_dir); os._exit(3)\n"
        "if how == 'late': atexit.register(os._exit, 9)\n"
    )
    ways = '"test_config": [{"how": ["killed", "left", "gone", "deleted", "late"]}]'
    errors = lab.run_tasks(body, f'"scheduler_config": {{"gpu": ["0"]}}, {ways}')
    said = [line.removeprefix("gpu_task_scheduler: ") for line in errors.splitlines()[-4:]]
    root = lab.directory / "results"
    assert said == [
        f"signal 9: {root}/how-killed,",
        f"exit 3: {root}/how-deleted,",
        f"exit 9: {root}/how-late,",
        "3 instances failed; run this script again to retry them",
    ]
    (lab.directory / "again").touch()
    again = lab.run_tasks(body, f'"scheduler_config": {{"gpu": ["0"]}}, {ways}')
    assert [line.rpartition(" ")[2] for line in again.splitlines() if "skips" in line] == ["how-left,", "how-gone,"]
    assert (again.count("finishes"), lab.unfinished()) == (3, [])


def test_worker_killed(lab: Lab) -> None:
    """An instance whose worker was killed runs again, and that is said."""
    kills = "import time\nif os.environ['STOKER_ATTEMPT'] == '1': os.kill(os.getppid(), 9); time.sleep(600)\n"
    config = '"scheduler_config": {"gpu": ["0"]}, "test_config": [{"a": [1]}]'
    errors = lab.run_tasks(f"{kills}print('ran')", config)
    assert "gpu_task_scheduler: the worker of task a-1, was killed; retrying\n" in errors
    assert lab.text("results/a-1,/worker.log.1") == "ran\n"


def test_full_disk(lab: Lab) -> None:
    """An instance that cannot write its results fails, and is run again when there is space."""
    with small_disk(lab.directory / "disk", "size=1m") as disk:
        ballast = fill(disk)
        config = '"scheduler_config": {"gpu": ["0"], "result_root_folder": "disk/r"}, "test_config": [{"a": [1]}]'
        assert "1 instance failed" in lab.run_tasks("print('x' * 9000)", config)
        ballast.unlink()
        assert "failed;" not in lab.run_tasks("print('x' * 9000)", config)
        assert len(lab.text("disk/r/a-1,/worker.log")) == 9001
        fill(disk)
        full = '"scheduler_config": {"gpu": ["0"], "temp_folder": "disk"}, "test_config": [{"a": [1]}]'
        lab.write(script=script(full))
        assert "cannot write to temp_folder" in lab.python("script.py")[2]


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_script_without_standard_error(lab: Lab, closed: str) -> None:
    """Files that take the numbers of closed ones are not mistaken for them."""
    lab.run_tasks("print('x')", '"scheduler_config": {"gpu": ["0"], "force_rerun": True}, "test_config": [{"a": [1]}]')
    assert lab.typed(f"{sys.executable} script.py {closed}").returncode == 0
    assert (lab.text("results/a-1,/worker.log"), lab.unfinished()) == ("x\n", [])
    assert lab.text("scheduler.log").count("finishes task") == 2


# -- the same scheduler several times ------------------------------------------------------------------


def test_several_starts(lab: Lab) -> None:
    """A second start of one scheduler has nothing left to do; another scheduler in the same script works too."""
    lab.run_tasks("print('ran')", FOUR)
    lab.write(
        script="from task import Task\n"
        "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler\n"
        "for name in 'ab':\n"
        '    config = {"scheduler_config": {"gpu": ["0", ["1", "2"]]}, "test_config": [{name: [1, 2]}]}\n'
        "    scheduler = GPUTaskScheduler(config=config, gpu_task_class=Task)\n"
        "    assert scheduler.start() is scheduler.start() is None\n"
        '    assert config["scheduler_config"] == {"gpu": ["0", ["1", "2"]]}\n'
    )
    code, _, errors = lab.python("script.py")
    assert (code, errors.count("finishes task"), errors.count("gpu0 finished")) == (0, 4, 4)


# -- classes that are in no module ---------------------------------------------------------------------

IN_MAIN = """\
import os, sys
from gpu_task_scheduler.gpu_task import GPUTask
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
open("loads", "a").write("x")

class Value:
    def __init__(self, number):
        self.number = number
    def __str__(self):
        return str(self.number)

class MyGPUTask(GPUTask):
    def main(self):
        print(self._config["a"].number, os.environ["CUDA_VISIBLE_DEVICES"], sys.argv[1:])

{guard}config = {{"scheduler_config": {{"gpu": ["0"]}}, "test_config": [{{"a": [Value(1), Value(2)]}}]}}
{guard}GPUTaskScheduler(config=config, gpu_task_class=MyGPUTask).start()
{guard}open("loads", "a").write("after")
"""


@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__": '])
def test_class_in_the_script(lab: Lab, guard: str) -> None:
    """A class of the script itself works, with a guard or without one: instances read the script up to the start."""
    lab.write(script=IN_MAIN.format(guard=guard))
    code, _, errors = lab.python("script.py", "--fast")
    assert (code, lab.folders()) == (0, ["a-1,", "a-2,"]), errors
    assert lab.text("results/a-2,/worker.log") == "2 0 ['--fast']\n"
    assert lab.text("loads") == "xxxafter"


def test_class_in_a_notebook(lab: Lab) -> None:
    """Where there is no file at all, class and parameters travel by value."""
    code, _, errors = lab.python("-c", IN_MAIN.format(guard=""))
    assert (code, lab.folders()) == (0, ["a-1,", "a-2,"]), errors
    assert lab.text("results/a-2,/worker.log").startswith("2 0 ")
    assert lab.text("loads") == "xafter"


def test_class_in_a_notebook_without_cloudpickle(lab: Lab) -> None:
    """Without the library for that, it is said what is not possible and what is."""
    program = "import sys; sys.modules['cloudpickle'] = None\n" + IN_MAIN.format(guard="")
    code, _, errors = lab.python("-c", program)
    assert code == 1
    assert "cannot be sent to another process: it is not defined in a file" in errors
    assert "define class and parameters at the top of a file that is imported" in errors
    assert not (lab.directory / "results").exists()


PACKAGE = """\
from gpu_task_scheduler.gpu_task import GPUTask
from .value import number


class Task(GPUTask):
    def main(self):
        print(number, __package__, __path__)
"""


@pytest.mark.parametrize(
    ("files", "words", "printed"),
    [
        # The file of a package may define the class, and import its other modules.
        (
            {"package/__init__": PACKAGE, "script": script(FOUR).replace("from task", "from package")},
            ["script.py"],
            "5 package ['{directory}/package']\n",
        ),
        # `python -m package.script` works too, with relative imports in the script that defines the class.
        ({"package/script": "from .value import number\n" + IN_MAIN.format(guard="")}, ["-m", "package.script"], "1 0"),
    ],
    ids=["class in a package", "script in a package"],
)
def test_packages(lab: Lab, files: dict[str, str], words: list[str], printed: str) -> None:
    (lab.directory / "package").mkdir()
    lab.write(**files, **{"package/value": "number = 5\n"})
    assert lab.python(*words)[0] == 0
    log = lab.text(f"results/{lab.folders()[0]}/worker.log")
    assert log.startswith(printed.format(directory=lab.directory))


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("[__import__('threading').Lock()]", "cannot be sent to another process: cannot pickle '_thread.lock'"),
        ("['x\\0y']", "no folder can be named"),
    ],
)
def test_instances_that_cannot_run(lab: Lab, values: str, said: str) -> None:
    """What can never work is refused with a sentence before anything has started."""
    lab.run_tasks("pass", FOUR)
    lab.write(script=script(f'"scheduler_config": {{"gpu": ["0"]}}, "test_config": [{{"a": {values}}}]'))
    code, _, errors = lab.python("script.py")
    assert (code, said in errors) == (1, True), errors


def test_folder_name_too_long(lab: Lab) -> None:
    """An instance whose folder cannot be created fails by itself, and the report says why."""
    settings = '"scheduler_config": {"gpu": ["0"], "config_string_value_maxlen": 999}'
    config = f'{settings}, "test_config": [{{"a": ["x" * 300, "y"]}}]'
    errors = lab.run_tasks("print('ran')", config)
    assert "File name too long" in errors
    assert lab.text("results/a-y,/worker.log") == "ran\n"


# -- start_gpu_task --------------------------------------------------------------------------------


def test_start_gpu_task(lab: Lab) -> None:
    """The program takes just its four words, and runs a task that the older library pickled."""
    lab.write(config=CONFIG, my_gpu_task=TASK)
    make = "import pickle; from my_gpu_task import MyGPUTask; pickle.dump(MyGPUTask({}, '.'), open('old.pkl', 'wb'))"
    lab.python("-c", make)
    lab.environment["CUDA_VISIBLE_DEVICES"] = "3"
    words = ("-m", "gpu_task_scheduler.start_gpu_task", "old.pkl", "my_gpu_task", "my_gpu_task.py")
    assert lab.python(*words, str(lab.directory)) == (0, "ran on 3\n", "")
    code, _, errors = lab.python(*words)
    assert (code, errors) == (2, "usage: start_gpu_task PICKLE MODULE_NAME MODULE_PATH DIRECTORY\n")
    code, _, errors = lab.python(*words[:2], "none.pkl", *words[3:], os.devnull)
    assert (code, "none.pkl does not exist" in errors) == (2, True)
