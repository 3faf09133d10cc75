"""The programs of docs/environments.md that give way: preempted in the middle, they lose and repeat no step."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from support.background import Background
from support.wait import wait_until

PAGE = Path(__file__).parents[2] / "docs/environments.md"
LAST = 20
WAITS_AT = 7
"""The first run waits at this step until it has been asked to give way."""

WAIT = f"""
import os, time

def wait_at(step, is_asked):
    if step == {WAITS_AT} and "STOKER_RESTART" not in os.environ:
        open("ready", "w").close()
        while not is_asked():
            time.sleep(0.01)
"""
TORCH = f"""{WAIT}
import stoker, torch

def batch(step):
    wait_at(step, stoker.should_stop)
    return torch.ones(2, 3)

class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        wait_at(index, stoker.should_stop)
        return torch.ones(3)

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
"""
PROJECTS = {
    "PyTorch": TORCH,
    "Lightning": f"""{TORCH}
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

loader = torch.utils.data.DataLoader(Items())
""",
    "Hugging Face Trainer": f"""{TORCH}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def forward(self, x):
        return {{"loss": self.layer(x).square().mean()}}

class Examples(Items):
    seen = 0
    def __getitem__(self, index):
        Examples.seen += 1
        wait_at(Examples.seen, stoker.should_stop)
        return {{"x": torch.ones(3)}}

model, dataset = Model(), Examples()
""",
    "Keras": f"""{WAIT}
import keras, numpy, stoker

class Batches(keras.utils.PyDataset):
    epoch = 0
    def __len__(self):
        return 1
    def __getitem__(self, index):
        Batches.epoch += 1
        wait_at(Batches.epoch, stoker.should_stop)
        return numpy.ones((2, 3)), numpy.zeros((2, 1))

dataset = Batches()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
""",
    "Without Stoker": f"""{WAIT}
def work(step):
    import __main__
    wait_at(step, lambda: __main__.asked)
""",
}
MODULES = {
    "PyTorch": ["torch"],
    "Lightning": ["lightning"],
    "Hugging Face Trainer": ["transformers", "accelerate"],
    "Keras": ["keras", "torch"],
    "Without Stoker": [],
}


def program(heading: str) -> str:
    """The first Python block below a heading of the page."""
    text = PAGE.read_text().partition(f"\n### {heading}\n")[2]
    match = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert match, heading
    return match[1]


def steps(log: str) -> list[int]:
    return [int(number) for number in re.findall(r"^step (\d+)$", log, re.MULTILINE)]


@pytest.mark.timeout(300)  # frameworks take long to load on a busy machine
@pytest.mark.parametrize("heading", PROJECTS)
def test_no_step_is_lost_or_repeated(background: Background, heading: str) -> None:
    """It is asked in the middle, saves, and goes on with the next step when it runs again."""
    for module in MODULES[heading]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    background.environment |= {
        "KERAS_BACKEND": "torch",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src"), str(background.cwd)]),
    }
    background.write("project.py", PROJECTS[heading])
    background.write("train.py", program(heading))
    (job,) = background.submit(f"exec {shlex.quote(sys.executable)} train.py", preemptible="save", save_time=3600.0)
    wait_until((background.cwd / "ready").exists, seconds=200)
    assert background("preempt", str(job)).code == 0
    wait_until(lambda: background.job(job).preemptions == 1, seconds=200)
    wait_until(lambda: background.word(job) not in ("waiting", "starting", "running"), seconds=200)
    first, second = steps(background.log(job)), steps(background.log(job, 1))
    assert background.ended(job).result == "done", background.log(job, 1)
    assert WAITS_AT - 1 <= len(first) < LAST
    assert first + second == list(range(1, LAST + 1))
    told = json.loads(background("status", "--json", str(job)).out)["jobs"][0]
    assert [attempt["why"] for attempt in told["attempts"]] == ["preempted", "exited"]
