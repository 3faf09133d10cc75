"""Variables that look like secrets are known by their names."""

from __future__ import annotations

import pytest

from stoker.core.text import HIDDEN, looks_secret, shown_value


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "db_password", "MYSQL_PASSWD"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SSH_PRIVATE_KEY", "GITHUB_TOKEN", "PGPASSWORD", "DATABASE_URL"),
    ],
)
def test_secrets(name: str) -> None:
    """What tools of this field call their keys, in capital or small letters."""
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["PATH", "SEED", "CUDA_VISIBLE_DEVICES", "KEYBOARD", "GIT_AUTHOR_NAME", "MONKEY"])
def test_harmless_names(name: str) -> None:
    """Most variables are shown."""
    assert not looks_secret(name)


def test_other_patterns() -> None:
    """The user's patterns take the place of the built-in ones."""
    assert looks_secret("my_seed", ["*SEED"])
    assert not looks_secret("HF_TOKEN", ["*SEED"])


def test_length_is_hidden_too() -> None:
    """All hidden values look the same."""
    assert shown_value("HF_TOKEN", "x") == shown_value("HF_TOKEN", "x" * 40) == HIDDEN
    assert shown_value("SEED", "1") == "1"
