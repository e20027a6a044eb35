"""Shells complete commands, options and names of profiles."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from twinbus.cli.profiles import Profile, Profiles, write_profiles


def complete(*words: str, shell: str = "bash") -> list[str]:
    environment = {
        **os.environ,
        "_TWINBUS_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-c", "from twinbus.cli.main import app; app(prog_name='twinbus')"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()


def test_a_command_is_completed() -> None:
    assert complete("twinbus", "prof") == ["profile"]


def test_a_profile_is_completed() -> None:
    write_profiles(Profiles({name: Profile("") for name in ("local", "live", "other")}))
    assert complete("twinbus", "token", "--profile", "l") == ["local", "live"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(shell: str) -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "twinbus", "--show-completion", shell]
    script = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert f"complete_{shell}" in script
