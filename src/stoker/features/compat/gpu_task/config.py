"""ConfigManager: the defaults of a configuration, its test instances, and the folder of each."""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any


class ConfigManager:
    """Reads a configuration, and returns its test instances one by one."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Writes the defaults into the given scheduler_config, as the older library did."""
        if "scheduler_config" not in config:
            raise ValueError("could not find scheduler_config in config")
        for name in ("scheduler_config", "global_config"):
            if not isinstance(config.get(name, {}), Mapping):
                raise _explained(TypeError(f"{name} is a dictionary"), f"found {config[name]!r}")
        self._config = config
        self._scheduler_config = _filled(config["scheduler_config"])
        self._global_config: dict[str, Any] = config.get("global_config", {})
        self._test_config = _instances(config["test_config"]) if "test_config" in config else [{}]
        self._given = 0

    def get_all_scheduler_config(self) -> dict[str, Any]:
        return self._scheduler_config

    def get_all_global_config(self) -> dict[str, Any]:
        return self._global_config

    def get_all_test_config(self) -> list[dict[str, Any]]:
        return self._test_config

    def get_all_test_config_in_string(self) -> str:
        """The test parameters in a string, as they are written in the configuration."""
        ends = self._scheduler_config["test_config_string_inst_separator"]
        return "".join(self._joined(inst, None) + ends for inst in self._config["test_config"])

    def get_next_config(self, create_dir: bool = False) -> dict[str, Any]:
        """The next parameter setting to test, `{"config": None}` after the last one. Creates no folder."""
        if not self.get_num_left_config():
            return {"config": None}
        instance = self._test_config[self._given]
        self._given += 1
        ignored = self._scheduler_config["ignored_keys_for_folder_name"]
        folder = self._short({key: value for key, value in instance.items() if key not in ignored})
        return {
            "config": {**copy.deepcopy(self._global_config), **instance},
            "test_config_string": self._short(instance),
            "test_config_string_filtered": folder,
            "work_dir": os.path.join(self._scheduler_config["result_root_folder"], folder),
        }

    def get_num_left_config(self) -> int:
        return len(self._test_config) - self._given

    def get_gpu_envs(self) -> list[dict[str, Any]]:
        """The name and the variables of each GPU entry."""
        return [{"name": f"gpu{gpu}", "env": {"CUDA_VISIBLE_DEVICES": gpu}} for gpu in self._scheduler_config["gpu"]]

    def get_num_gpu(self) -> int:
        return len(self._scheduler_config["gpu"])

    def _short(self, instance: Mapping[str, Any]) -> str:
        """Values are cut before characters are left out, so a name may be shorter than the limit."""
        text = self._joined(instance, self._scheduler_config["config_string_value_maxlen"])
        for character in self._scheduler_config["ignored_characters_for_folder_name"]:
            text = text.replace(character, "")
        return text

    def _joined(self, instance: Mapping[str, Any], longest: int | None) -> str:
        indicator = self._scheduler_config["test_config_string_indicator"]
        separator = self._scheduler_config["test_config_string_separator"]
        return "".join(f"{key}{indicator}{str(instance[key])[:longest]}{separator}" for key in sorted(instance))


def _filled(scheduler_config: dict[str, Any]) -> dict[str, Any]:
    """The same dictionary, with defaults and with GPU entries as text."""
    defaults = {
        "force_rerun": False,
        "result_root_folder": os.path.abspath("results/"),
        "test_config_string_separator": ",",
        "test_config_string_indicator": "-",
        "test_config_string_inst_separator": "+",
        "temp_folder": os.path.abspath("temp/"),
        "log_file": "worker.log",
        "scheduler_log_file_path": "scheduler.log",
        "config_string_value_maxlen": 30,
        "ignored_keys_for_folder_name": [],
        "ignored_characters_for_folder_name": [" ", "[", "]"],
    }
    for key, value in defaults.items():
        scheduler_config.setdefault(key, value)
    _check_gpus(scheduler_config)
    os.makedirs(scheduler_config["temp_folder"], exist_ok=True)
    return scheduler_config


def _check_gpus(scheduler_config: dict[str, Any]) -> None:
    if scheduler_config.get("cluster"):
        scheduler_config.setdefault("gpu", ["0"])  # Slurm chooses which; an entry tells how many
    if "gpu" not in scheduler_config:
        raise ValueError("could not find gpu in scheduler_config")
    gpus = scheduler_config["gpu"]
    if not isinstance(gpus, Collection) or (isinstance(gpus, str) and len(gpus) > 1):  # its letters are no GPUs
        raise _explained(ValueError("gpu can only be a list"), f'write "gpu": {str(gpus).split(",")!r}')
    if len(gpus) < 1:
        raise ValueError("please specify at least one gpu in scheduler_config")
    words = [_gpu_word(gpu) for gpu in gpus]
    if words != list(gpus):
        scheduler_config["gpu"] = gpus if isinstance(gpus, list) else words
        scheduler_config["gpu"][:] = words


def _gpu_word(gpu: Any) -> str:
    if isinstance(gpu, list):
        if not all(isinstance(part, str) for part in gpu):
            raise _explained(TypeError("a list of GPU IDs can only hold strings"), f"write {[str(p) for p in gpu]!r}")
        return ",".join(gpu)
    if not isinstance(gpu, str):
        raise _explained(ValueError("gpu can only be a string or a list of strings"), f"found {gpu!r}")
    return gpu


def _instances(test_config: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The product of each dictionary, the first key slowest, one dictionary after the other."""
    if isinstance(test_config, Mapping) or not isinstance(test_config, Iterable):
        raise _explained(TypeError("test_config is a list of dictionaries"), 'write "test_config": [{...}]')
    return [
        dict(zip(table, values, strict=True)) for table in test_config for values in itertools.product(*_values(table))
    ]


def _values(parameters: Mapping[str, Any]) -> list[Any]:
    if not isinstance(parameters, Mapping):
        raise _explained(TypeError("test_config is a list of dictionaries"), f"{parameters!r} is none")
    for key, values in parameters.items():
        if not isinstance(values, Iterable):
            why = f"the values to test for {key!r} are not a list but {values!r}"
            raise _explained(TypeError(why), f"write {key!r}: [{values!r}]")
        if isinstance(values, str) and len(values) > 1:
            text = (
                f"the values to test for {key!r} are the letters of {values!r}; write [{values!r}] if it is one value"
            )
            warnings.warn(text, stacklevel=2)
    return list(parameters.values())


def _explained(error: Exception, hint: str) -> Exception:
    error.add_note(hint)
    return error
