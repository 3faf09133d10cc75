"""Progress and rate are read from the progress lines of common programs."""

from __future__ import annotations

from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.logs.progress import NEARLY, Progress, ProgressCount, read_pace, read_progress

QUIET = settings(max_examples=300, derandomize=True)


def rounded(pace: ProgressCount | None) -> tuple[int | None, int | None, float | None, str] | None:
    if pace is None:
        return None
    return pace.done, pace.total, None if pace.per_second is None else round(pace.per_second, 3), pace.unit


@pytest.mark.parametrize(
    ("line", "pace"),
    [
        ("45%|####   | 45/100 [00:10<00:12,  4.50it/s]", (45, 100, 4.5, "it")),
        ("  0%|          | 0/18 [00:00<?, ?it/s]", (0, 18, None, "")),
        ("45it [00:10, 4.50it/s]", (45, None, 4.5, "it")),
        ("45%|████▌     | 45/100 [00:10<00:12,  1.25s/it]", (45, 100, 0.8, "it")),
        ("train:  24%|██▍  | 1.20k/5.00k [00:10<00:12, 33.0batch/s, loss=0.3]", (1200, 5000, 33.0, "batch")),
        ("12.3kit [00:01, 9.50kit/s]", (12300, None, 9500.0, "it")),
        ("45%|####   | 45/100 [00:10<00:12,  4.50it/s, tok/s=900]", (45, 100, 4.5, "it")),
        ("100%|██████████| 100/100 [00:22<00:00,  4.50it/s]", (100, 100, 4.5, "it")),
    ],
)
def test_tqdm(line: str, pace: object) -> None:
    """Both forms of a rate, any unit, scaled numbers, bars without a total and bars without a rate yet."""
    assert rounded(read_pace(line)) == pace


@pytest.mark.parametrize(
    ("line", "pace"),
    [
        ("120/500 [====>.........................] - ETA: 10s - loss: 0.3042", (120, 500, 38.0, "step")),
        ("821/1000 [=======================>......] - ETA: 3:35 - loss: 1.0181", (821, 1000, 0.833, "step")),
        ("10/1000 [>......] - ETA: 1:00:00 - loss: 1.0181", (10, 1000, 0.275, "step")),
        ("60000/60000 [==============================] - ETA: 0s - loss: 0.3375", (60000, 60000, None, "")),
        ("500/500 [==============================] - 3s 5ms/step - loss: 0.3437", (500, 500, 200.0, "step")),
        ("  200/Unknown - 5s 250us/step - loss: 0.3281", (200, None, 4000.0, "step")),
        ("1875/1875 ━━━━━━━━━━━━━━━━━━━━ 5s 2ms/step - accuracy: 0.9", (1875, 1875, 500.0, "step")),
        ("  45/1875 ━━━━━━━━━━━━━━━━━━━━ 1:02 34ms/step - accuracy: 0.9", (45, 1875, 29.412, "step")),
        ("1/1 [==============================] - 1s 1s/step", (1, 1, 1.0, "step")),
    ],
)
def test_keras(line: str, pace: object) -> None:
    """Keras prints the time per step at the end of an epoch; before that, the rate follows from the ETA."""
    assert rounded(read_pace(line)) == pace


@pytest.mark.parametrize(
    ("line", "pace"),
    [
        ("Epoch 0:  22%|██▏       | 4/18 [00:17<01:02,  4.00s/it, loss=10.0, v_num=193]", (4, 18, 0.25, "it")),
        ("Epoch 3/9  ━━━━━━━━━━━ 45/100 0:00:10 • 0:00:12 4.50it/s v_num: 0", (45, 100, 4.5, "it")),
        ("step 45/100", (45, 100, None, "")),
        ("Step: 45 of 100, loss 0.3, 4.5 it/s", (45, 100, 4.5, "it")),
        ("Epoch 3/10", (3, 10, None, "")),
        ("Epoch [3/10], Step [45/100], Loss: 0.3", (45, 100, None, "")),
        ("Epoch: [0][ 45/100]  Time 1.209  Data 0.000", (45, 100, None, "")),
        ("[ 45/100]", (45, 100, None, "")),
        ("Train Epoch: 3 [1280/60000 (2%)]  Loss: 0.3", (1280, 60000, None, "")),
        ("4.5 it/s", (None, None, 4.5, "it")),
        ("throughput: 812 samples/s", (None, None, 812.0, "samples")),
        ("20% ━━━━━ 20,480/100,000  [ 0:00:10 < 0:00:39 , 2,048 it/s ]", (20480, 100000, 2048.0, "it")),
        ("throughput: 12,812.5 samples/s", (None, None, 12812.5, "samples")),
        ("samples/sec: 812.5", (None, None, 812.5, "samples")),
        ("ep 13 train, step 95, ctc 4.363, mem_usage:cuda:0 8.9GB, 0.750 sec/step", (95, None, 1.333, "step")),
        (" iteration       45/     100 | elapsed time per iteration (ms): 800.0 |", (45, 100, 1.25, "iteration")),
        ("eta: 0:12:03  iter: 19  total_loss: 3.1  time: 0.3", (19, None, None, "")),
        (
            "{'train_runtime': 12.3, 'train_samples_per_second': 12.3, 'train_steps_per_second': 0.41}",
            (None, None, 0.41, "steps"),
        ),
        ("\x1b[32mstep 45/100\x1b[0m \x1b[1m4.5 it/s\x1b[0m", (45, 100, 4.5, "it")),
    ],
)
def test_other_programs(line: str, pace: object) -> None:
    """Lightning, the examples of PyTorch, Megatron, detectron2, the summary of transformers, and plain words."""
    assert rounded(read_pace(line)) == pace


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",
        "2024/05/11 12:00:01 reading /data/1/2 from 10.0.0.1/24",
        "model.safetensors: 45%|████▌     | 1.2G/2.7G [00:10<00:12, 120MB/s]",
        "3 iterations done, 312.5 TFLOP/s",
        "step 9/3",
        "loss 0/0s/step ?it/s it/s",
    ],
)
def test_other_text_does_not_match(text: str) -> None:
    """Losses, dates, paths, downloads and floating-point operations are not progress."""
    assert read_pace(text) is None


def test_the_last_line_with_a_rate_counts() -> None:
    """Of nested bars the last written counts; an incomplete last line has no rate yet."""
    outer = "epochs:  10%|█  | 1/10 [01:00<09:00, 60.00s/it]"
    inner = "batches: 50%|██ | 50/100 [00:10<00:10,  5.00it/s]"
    assert rounded(read_pace(f"{outer}\n{inner}\x1b[A\r")) == (50, 100, 5.0, "it")
    assert rounded(read_pace(f"{inner}\n{outer}\nsaved step 3/4\n")) == (1, 10, 0.017, "it")
    assert rounded(read_pace(f"{inner}\rbatches: 51%|██ | 51/100 [00:10<00:1")) == (50, 100, 5.0, "it")
    assert rounded(read_pace("step 3/10\nstep 4/10\nhello\n")) == (4, 10, None, "")


def test_half_a_line_is_not_read() -> None:
    """The first line of a cut log is skipped, since its number may be incomplete."""
    line = "1145/2000 [00:10<00:12, 14.50it/s]"
    assert read_pace(line + "\n" + "x" * 65_530) is None


@pytest.mark.parametrize(
    "text", ["C" * 2**20, " " * 2**20, "7" * 2**20, "7/" * 2**19, "step " * 2**18, "step 7/\n" * 2**17]
)
def test_long_texts_take_no_time(text: str) -> None:
    """Only the end of a text and a limited part of each line are searched."""
    begun = process_time()
    read_pace(text)
    assert process_time() - begun < 10.0  # what grows with the square takes hours


PIECES = st.sampled_from(
    [
        "\r",
        "\n",
        "45/100 [",
        "|",
        " ",
        "s/s",
        "it/s",
        "4.5",
        "0",
        "ETA: ",
        "0:0:0s",
        "step ",
        "[",
        "]",
        "/",
        "ms/step",
        "k",
        "µs/",
        "?",
    ]
)


@QUIET
@given(st.text(max_size=200) | st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_accepted(text: str) -> None:
    """Any text gives a pace or None, and a rate is never negative."""
    pace = read_pace(text)
    assert pace is None or pace.per_second is None or pace.per_second >= 0


@QUIET
@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**5))
def test_every_bar_is_read_as_it_was_written(done: int, more: int, hundredths: int) -> None:
    """All numbers that tqdm can print are read back."""
    rate = hundredths / 100
    line = f"train: {100 * done // (done + more):3d}%|██   | {done}/{done + more} [00:10<00:12, {rate:5.2f}it/s]"
    assert read_pace(f"hello\n{line}\r") == ProgressCount(done, done + more, rate, "it")


def bar(what: str, done: int, total: int, elapsed: int = 0) -> str:
    """A line of tqdm that takes a second for each step."""
    percent, left = done * 100 // total, total - done
    clock = f"{elapsed // 60:02}:{elapsed % 60:02}<{left // 60:02}:{left % 60:02}"
    return f"{what}{percent:3}%|{'#' * (percent // 10):10}| {done}/{total} [{clock}, 1.00it/s]"


def bars(what: str, first: int, last: int, total: int) -> str:
    return "\r".join(bar(what, done, total, done) for done in range(first, last + 1)) + "\n"


KERAS = "\r".join(f"{step}/100 [===>......] - ETA: 3s - loss: 0.1" for step in range(46))
KERAS_3 = "\r".join(f"\x1b[1m{step}/100\x1b[0m \x1b[32m━━━━\x1b[37m━━\x1b[0m 1s 10ms/step" for step in range(46))


@pytest.mark.parametrize(
    ("log", "ran", "fraction"),
    [
        (bars("", 400, 450, 1000) + bars("", 0, 3, 10), 460, 0.45),  # Hugging Face: training, and an evaluation inside
        (f"Epoch 1/10\n{KERAS}\nEpoch 2/10\n{KERAS}", 100, 0.145),
        (f"Epoch 3/10\n{KERAS_3}", 100, 0.245),
        ("Epoch 3/9 ━━━━━╸━━━━ 45/100 0:00:10 • 0:00:12 4.5it/s", 100, 0.345),  # Lightning counts from 0 to 9
        (bar("Epoch 3/10: ", 45, 100, 10), 100, 0.245),
        (bar("Epochs: ", 3, 10, 300) + "\n" + bar("train: ", 45, 100, 45), 345, 0.345),
        (bar("Epochs: ", 3, 10, 300), 345, 0.3),
        ("Epoch [3/10], Step [200/500], Loss: 0.2", 10, 0.24),
        ("epoch 2/10 loss 1\nepoch 3/10 loss 0.4\n", 10, 0.3),
        ("epoch 0/10 loss 1\nepoch 1/10 loss 0.4\n", 10, 0.2),
        ("epoch 10/10 loss 0.1\n", 10, 0.99),  # it still runs
        ("step 300/1000 loss 3\n", 10, 0.3),
        (" iteration      300/    1000 | consumed samples: 3\n", 10, 0.3),
        (
            f"      3/100      4.21G     1.2345     0.987         34        640: {bar('', 40, 100, 4)}",
            100,
            0.024,
        ),  # YOLO
        (f"  0/2  0G  1.2\n{bar('', 9, 10, 9)}\n      2/2      0G     1.2345        640: {bar('', 5, 10, 4)}", 9, 0.75),
        ("   20% ━━━━━━━━ 20,480/100,000  [ 0:00:10 < 0:00:39 , 2,048 it/s ]", 10, 0.205),  # stable-baselines3
        (f"1|100|Loss: 1.2345: {bar('', 100, 1000, 100)}", 110, 0.1),  # torchtune
        ("Episode 300/1000 reward 12.5\n", 10, 0.3),
        ("Generation 3/50: best 0.4\n", 10, 0.06),
        ("Progress: 12.5%\nProgress: 45.0%\n", 10, 0.45),
        ("[INFO] progress = 45 % done\n", 10, 0.45),
        ("fold 2/5\nEpoch 5/10 loss 0.2\n", 10, 0.3),
        ("fold 0 of 5\nEpoch 5/10\nfold 1 of 5\nEpoch 5/10\n", 10, 0.3),
        ("Fold [2/5]\nloading\n", 10, 0.2),
    ],
)
def test_the_progress_of_the_whole_job(log: str, ran: float, fraction: float) -> None:
    """Epochs count with the part of the running one; a short loop inside the job does not hide the long one."""
    found = read_progress(log, ran)
    assert found is not None
    assert round(found.fraction, 3) == fraction


@pytest.mark.parametrize(
    ("log", "ran"),
    [
        (bars("", 0, 99, 100) + bars("", 0, 40, 100), 60),  # began again
        (bars("", 0, 40, 100), 1000),  # began late
        (bar("Epoch 3: ", 99, 100, 390), 400),  # an epoch of unknown number
        (bar("Loading checkpoint shards: ", 3, 3, 30), 40),  # complete, and the job runs
        ("Epoch: [3][ 20/100]\tTime 0.1 (0.2)\n", 10),
        ("Train: 3 [ 400/1251 ( 32%)]  Loss: 6.9 (6.8)  Time: 0.2s\n", 10),  # timm
        ("Test: [  10/40]  Time: 0.1 (0.1)  Loss: 1.2\n", 10),
        ("Epoch: [0]  [ 100/1251]  eta: 0:12:03  lr: 0.1  loss: 6.9\n", 10),  # torchvision: the eta of the epoch
        ("Fold 2\nEpoch 5/10\n", 10),
        ("Progress: 100%\n", 10),
        ("the progress of 45% of users\n", 10),
        (KERAS, 100),
        ("epoch 0/0\n 0%|   | 0/0 [00:00<?, ?it/s]\nstep 0/0", 10),
        ("epoch 5/3\nstep nan/10", 10),
        ("2026/11/15 12/31 a/b 3/4 done", 10),
        ("45%|####   | 45/100 [00:10<00:12, 4.50MB/s]", 12),  # a download
        ("\x00\x1b[31\udcff" * 1000, 10),
        ("", 10),
    ],
)
def test_no_progress_is_better_than_a_wrong_one(log: str, ran: float) -> None:
    """A loop that begins again with each epoch tells nothing about the whole job."""
    assert read_progress(log, ran) is None


@pytest.mark.parametrize(
    ("line", "left", "fraction"),
    [
        ("mmcv - INFO - Epoch [1][100/1251]\tlr: 1.000e-02, eta: 1:00:00, time: 0.5, loss: 1.2", 3600, 0.25),
        ("mmengine - INFO - Epoch(train)  [1][ 100/1251]  lr: 1.0e-02  eta: 1 day, 0:00:00  time: 0.5", 86400, 0.014),
        (
            "mmengine - INFO - Iter(train) [  100/40000]  base_lr: 1.0e-02 lr: 1.0e-02  eta: 1:00:00  time: 0.5",
            3600,
            0.003,
        ),
        ("[11/17 10:00:00 d2.utils.events]:  eta: 1:00:00  iter: 19  total_loss: 3.1  time: 0.3", 3600, 0.25),
        ("d2.utils.events]:  eta: 2 days, 1:00:00  iter: 19  total_loss: 3.1", 176400, 0.007),
    ],
)
def test_the_eta_of_the_whole_job(line: str, left: float, fraction: float) -> None:
    """mmcv, mmengine and detectron2 print it; where no count tells, the fraction follows from the time so far."""
    found = read_progress(f"starting\n{line}\n", 1200)
    assert found is not None
    assert (found.left, round(found.fraction, 3)) == (left, fraction)


def test_a_bar_tells_the_time_left() -> None:
    """A job that went on from a checkpoint began in the middle of its bar."""
    assert read_progress(bars("", 500, 510, 1000), 10) == Progress(0.51, 490.0)


@QUIET
@given(st.text(st.sampled_from("Epoch 0123/9%|[]<:━ of\n\rstep-nan.\x1b"), max_size=200), st.floats(0, 1e6))
def test_any_text_gives_a_fraction(text: str, ran: float) -> None:
    """Whatever a log contains, progress is between nothing and nearly all."""
    found = read_progress(text, ran)
    assert found is None or 0 <= found.fraction <= NEARLY
