"""`twinbus profile`: adds, lists, shows, chooses and removes named connections, and never prints a key."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.support.cli import invoke
from twinbus.cli.output import EXIT_FAILED, EXIT_MISUSE
from twinbus.cli.profiles import Profile, profiles_file, read_profiles

STRING = "Endpoint=sb://host;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
ADMIN_STRING = STRING.replace("host", "host:5443")


def add(name: str, *options: str) -> None:
    result = invoke("profile", "add", name, *options, stdin=f"{STRING}\n{ADMIN_STRING}\n")
    assert result.exit_code == 0, result.output


def test_a_profile_comes_from_stdin_and_only_its_owner_may_read_it() -> None:
    Path("ca.pem").touch()
    add("one", "--ca-file", "ca.pem", "--admin-connection-string", "-", "--use")
    assert read_profiles().by_name["one"] == Profile(STRING, ADMIN_STRING, (str(Path("ca.pem").absolute()),))
    assert read_profiles().default == "one"
    assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600


def test_a_profile_comes_from_a_ready_file_with_both_connection_strings() -> None:
    ready = {
        "namespace": "contoso",
        "connection_string": STRING,
        "admin_connection_string": ADMIN_STRING,
        "ca_file": None,
    }
    Path("ready.json").write_text(json.dumps(ready))
    result = invoke("profile", "add", "one", "--ready-file", "ready.json")
    assert result.output == "Added profile one from ready file ready.json: use it with --profile one.\n"
    assert read_profiles().by_name["one"] == Profile(STRING, ADMIN_STRING, namespace="contoso")
    assert read_profiles().default is None


def test_a_profile_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINBUS_CONNECTION_STRING", ADMIN_STRING)
    add("one")
    assert read_profiles().by_name["one"] == Profile(ADMIN_STRING)


def test_list_and_show_print_endpoints_but_no_keys() -> None:
    add("one")
    add("two", "--use")
    listed = invoke("profile", "list")
    assert listed.output == "NAME  ENDPOINT  KEY   DEFAULT\none   host      root  no\ntwo   host      root  yes\n"
    shown = invoke("profile", "show", "one")
    assert "endpoint    host\n" in shown.output
    assert "is default  no\n" in shown.output
    rows = json.loads(invoke("profile", "list", "--json").output)
    assert [row["is_default"] for row in rows] == [False, True]
    assert json.loads(invoke("profile", "show", "one", "--json").output) == rows[0]
    assert "c2VjcmV0" not in f"{rows}{listed.output}{shown.output}"


def test_without_profiles_the_list_says_how_to_add_one() -> None:
    assert "add one with twinbus profile add" in invoke("profile", "list").output
    assert json.loads(invoke("profile", "list", "--json").output) == []


def test_use_and_remove_change_the_default() -> None:
    add("one")
    assert invoke("profile", "use", "one").exit_code == 0
    assert read_profiles().default == "one"
    assert invoke("profile", "use", "--none").exit_code == 0
    assert read_profiles().default is None
    assert invoke("profile", "use", "one").exit_code == 0
    assert invoke("profile", "remove", "one").exit_code == 0
    assert (read_profiles().by_name, read_profiles().default) == ({}, None)


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "reason"),
    [
        (("add", "one"), STRING, EXIT_FAILED, "there is a profile 'one' already: add --replace"),
        (("add", "a b"), STRING, EXIT_MISUSE, "'a b' is not a name for a profile"),
        (("add", "two"), "", EXIT_MISUSE, "stdin has no connection string"),
        (("add", "two"), STRING.replace("SharedAccessKeyName", "Key"), EXIT_MISUSE, "stdin: unknown field 'Key'"),
        (("add", "two", "--ca-file", "none.pem"), STRING, EXIT_FAILED, "there is no CA file none.pem"),
        (("add", "two", "--ready-file", "none"), "", EXIT_FAILED, "there is no ready file none"),
        (("show", "two"), "", EXIT_FAILED, "there is no profile 'two' (profiles: one)"),
        (("use", "two"), "", EXIT_FAILED, "there is no profile 'two' (profiles: one)"),
        (("use",), "", EXIT_MISUSE, "give the NAME of a profile, or --none"),
        (("remove", "two"), "", EXIT_FAILED, "there is no profile 'two' (profiles: one)"),
    ],
)
def test_a_refusal_is_one_line_without_the_key(arguments: tuple[str, ...], stdin: str, code: int, reason: str) -> None:
    add("one")
    result = invoke("profile", *arguments, stdin=stdin)
    assert (result.exit_code, result.output.count("\n")) == (code, 1)
    assert result.output.startswith(f"twinbus profile {arguments[0]}: {reason}")
    assert "c2VjcmV0" not in result.output
    assert list(read_profiles().by_name) == ["one"]


def test_replace_replaces_a_profile() -> None:
    add("one", "--admin-connection-string", "-")
    add("one", "--replace")
    assert read_profiles().by_name["one"] == Profile(STRING)
