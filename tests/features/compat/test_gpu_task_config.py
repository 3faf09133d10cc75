"""The configuration of the older GPUTaskScheduler, as its document and its behaviour say."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_task_scheduler.config_manager import ConfigManager

DOCUMENTED: dict[str, Any] = {
    "scheduler_config": {"gpu": ["0", "1", "2"]},
    "global_config": {"num_run": 5, "num_epoch": 200},
    "test_config": [
        {"method": ["GAN", "ALI"], "num_packing": [1], "num_zmode": [1]},
        {"method": ["WGAN"], "num_packing": [3], "num_zmode": [1, 2]},
    ],
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(test_config: Any = None, **scheduler_config: Any) -> ConfigManager:
    config: dict[str, Any] = {"scheduler_config": {"gpu": ["0"], **scheduler_config}}
    return ConfigManager(config if test_config is None else {**config, "test_config": test_config})


def given(manager: ConfigManager) -> Iterator[dict[str, Any]]:
    return iter(manager.get_next_config, {"config": None})


def folders(manager: ConfigManager) -> list[str]:
    return [one["test_config_string_filtered"] for one in given(manager)]


# -- the document ----------------------------------------------------------------------------------


def test_instances_of_the_document() -> None:
    """The sample gives the four instances that the document lists, in that order."""
    assert [one["config"] for one in given(ConfigManager(copy.deepcopy(DOCUMENTED)))] == [
        {"num_run": 5, "num_epoch": 200, "method": "GAN", "num_packing": 1, "num_zmode": 1},
        {"num_run": 5, "num_epoch": 200, "method": "ALI", "num_packing": 1, "num_zmode": 1},
        {"num_run": 5, "num_epoch": 200, "method": "WGAN", "num_packing": 3, "num_zmode": 1},
        {"num_run": 5, "num_epoch": 200, "method": "WGAN", "num_packing": 3, "num_zmode": 2},
    ]


def test_every_interface_of_the_document(place: Path) -> None:
    """All public methods answer, the counter goes down, and after the last instance there is none."""
    manager = ConfigManager(copy.deepcopy(DOCUMENTED))
    assert manager.get_all_global_config() == DOCUMENTED["global_config"]
    assert manager.get_all_test_config()[2] == {"method": "WGAN", "num_packing": 3, "num_zmode": 1}
    assert manager.get_all_test_config_in_string() == (
        "method-['GAN', 'ALI'],num_packing-[1],num_zmode-[1],+method-['WGAN'],num_packing-[3],num_zmode-[1, 2],+"
    )
    assert manager.get_num_left_config() == 4
    assert manager.get_next_config(create_dir=True) == {
        "config": {"num_run": 5, "num_epoch": 200, "method": "GAN", "num_packing": 1, "num_zmode": 1},
        "test_config_string": "method-GAN,num_packing-1,num_zmode-1,",
        "test_config_string_filtered": "method-GAN,num_packing-1,num_zmode-1,",
        "work_dir": f"{place}/results/method-GAN,num_packing-1,num_zmode-1,",
    }
    assert manager.get_num_left_config() == 3
    assert len(list(given(manager))) == 3
    assert (manager.get_next_config(), manager.get_num_left_config()) == ({"config": None}, 0)
    assert not (place / "results").exists()


def test_defaults(place: Path) -> None:
    """Every key that is not given has its documented default, in the very dictionary that was given."""
    config: dict[str, Any] = {"scheduler_config": {"gpu": ["0"]}}
    assert ConfigManager(config).get_all_scheduler_config() is config["scheduler_config"]
    assert config["scheduler_config"] == {
        "gpu": ["0"],
        "force_rerun": False,
        "result_root_folder": f"{place}/results",
        "test_config_string_separator": ",",
        "test_config_string_indicator": "-",
        "test_config_string_inst_separator": "+",
        "temp_folder": f"{place}/temp",
        "log_file": "worker.log",
        "scheduler_log_file_path": "scheduler.log",
        "config_string_value_maxlen": 30,
        "ignored_keys_for_folder_name": [],
        "ignored_characters_for_folder_name": [" ", "[", "]"],
    }
    assert (place / "temp").is_dir()


# -- instances -------------------------------------------------------------------------------------


def test_first_key_is_slowest() -> None:
    """Of a product the last key varies fastest; dictionaries follow each other; what is listed twice stays twice."""
    manager = configured([{"b": [1, 2], "a": ("x", "y")}, {"a": ["x"], "b": [1]}, {"a": []}])
    assert [(one["a"], one["b"]) for one in manager.get_all_test_config()] == [
        *(("x", 1), ("y", 1), ("x", 2), ("y", 2)),
        ("x", 1),
    ]


@pytest.mark.parametrize(("test_config", "instances"), [(None, [{}]), ([], []), ([{}], [{}])])
def test_configurations_without_parameters(test_config: Any, instances: Any) -> None:
    """Without test_config there is one instance, whose folder is the root itself; an empty list has none."""
    manager = configured(test_config)
    assert manager.get_all_test_config() == instances
    assert folders(manager) == [""] * len(instances)


def test_instance_wins_over_global() -> None:
    """A parameter of the instance replaces the global one; the global ones are copied for each instance."""
    config = {
        "scheduler_config": {"gpu": ["0"]},
        "global_config": {"a": 0, "list": []},
        "test_config": [{"a": range(2)}],
    }
    first, second = (one["config"] for one in given(ConfigManager(config)))
    assert (first, second) == ({"a": 0, "list": []}, {"a": 1, "list": []})
    assert first["list"] is not second["list"]


# -- folder names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "scheduler_config", "name"),
    [
        ({"run": [0], "packing_num": [1]}, {}, "packing_num-1,run-0,"),
        ({"a": [[1, 2]]}, {}, "a-1,2,"),
        ({"a": [[1, 2]]}, {"ignored_characters_for_folder_name": [" "]}, "a-[1,2],"),
        ({"a": ["x" * 40]}, {}, f"a-{'x' * 30},"),
        ({"a": ["[ab cd]"]}, {"config_string_value_maxlen": 4}, "a-ab,"),
        ({"a": ["abc"]}, {"config_string_value_maxlen": None}, "a-abc,"),
        ({"a": [1], "b": [2]}, {"ignored_keys_for_folder_name": ["a"]}, "b-2,"),
        (
            {"a": [1], "b": [2]},
            {"test_config_string_indicator": "=", "test_config_string_separator": "&"},
            "a=1&b=2&",
        ),
        ({"data": ["web/google"]}, {}, "data-web/google,"),
        ({"a": [0.001], "b": [None], "c": [(1,)]}, {}, "a-0.001,b-None,c-(1,),"),
    ],
)
def test_folder_names(parameters: Any, scheduler_config: Any, name: str) -> None:
    """Sorted keys, each value cut first and characters left out then, and a separator at the end."""
    assert folders(configured([parameters], **scheduler_config)) == [name]


def test_ignored_keys_stay_in_the_logs() -> None:
    """A key that is ignored for the folder is still in the name that the logs use."""
    manager = configured([{"a": [1], "b": ["x y"]}], ignored_keys_for_folder_name=["a"])
    one = manager.get_next_config()
    assert (one["test_config_string"], one["test_config_string_filtered"]) == ("a-1,b-xy,", "b-xy,")


def test_root_stays_relative() -> None:
    """A folder that was given relative is passed on as it is."""
    assert configured([{"a": [1]}], result_root_folder="out").get_next_config()["work_dir"] == "out/a-1,"


# -- GPUs ------------------------------------------------------------------------------------------


def test_gpu_entries() -> None:
    """Ids and lists of ids may be mixed; a list becomes one text, in place."""
    gpus: list[Any] = ["0", ["2", "3"], "GPU-8f2b"]
    manager = configured(gpu=gpus)
    assert (gpus, manager.get_num_gpu()) == (["0", "2,3", "GPU-8f2b"], 3)
    assert manager.get_gpu_envs()[1] == {"name": "gpu2,3", "env": {"CUDA_VISIBLE_DEVICES": "2,3"}}


def test_gpu_entries_in_a_tuple() -> None:
    """A tuple of entries is understood too."""
    assert configured(gpu=("0", ["2", "3"])).get_all_scheduler_config()["gpu"] == ["0", "2,3"]


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        ({}, ValueError, "could not find scheduler_config in config"),
        ({"scheduler_config": {}}, ValueError, "could not find gpu in scheduler_config"),
        ({"scheduler_config": {"gpu": []}}, ValueError, "please specify at least one gpu in scheduler_config"),
        ({"scheduler_config": {"gpu": [0]}}, ValueError, "gpu can only be a string or a list of strings"),
        ({"scheduler_config": {"gpu": [("0", "1")]}}, ValueError, "gpu can only be a string or a list of strings"),
        ({"scheduler_config": {"gpu": [[0, 1]]}}, TypeError, "a list of GPU IDs can only hold strings"),
        ({"scheduler_config": {"gpu": "0,1"}}, ValueError, "gpu can only be a list"),
        ({"scheduler_config": {"gpu": 0}}, ValueError, "gpu can only be a list"),
        ({"scheduler_config": None}, TypeError, "scheduler_config is a dictionary"),
        ({"scheduler_config": {"gpu": ["0"]}, "global_config": []}, TypeError, "global_config is a dictionary"),
        ({"scheduler_config": {"gpu": ["0"]}, "test_config": None}, TypeError, "test_config is a list of dictionaries"),
    ],
)
def test_refused_gpus(config: Any, kind: type[Exception], message: str) -> None:
    """What cannot be understood is refused, in the older library's words where it had some."""
    with pytest.raises(kind) as caught:
        ConfigManager(config)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("test_config", "hint"),
    [
        ([{"lr": 0.1}], "write 'lr': [0.1]"),
        ({"lr": [0.1]}, 'write "test_config": [{...}]'),
        (["lr"], "'lr' is none"),
    ],
)
def test_refused_parameters(test_config: Any, hint: str) -> None:
    """Values that are no list, and a dictionary in place of a list, are refused with what to write instead."""
    with pytest.raises(TypeError) as caught:
        configured(test_config)
    assert caught.value.__notes__ == [hint]


def test_text_in_place_of_a_list() -> None:
    """The letters of a text are values, as ever, and a warning says so."""
    with pytest.warns(UserWarning, match=r"the letters of 'GAN'; write \['GAN'\]"):
        manager = configured([{"method": "GAN"}])
    assert folders(manager) == ["method-G,", "method-A,", "method-N,"]
