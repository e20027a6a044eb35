"""A command finds its namespace in options, the environment, a profile, or the ready file of a local server."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest

from twinbus.cli.connection import Role, find_target
from twinbus.cli.output import EXIT_FAILED, EXIT_MISUSE, CommandFailed
from twinbus.cli.profiles import Profile, Profiles, profiles_file, read_profiles, write_profiles


def connection_string(host: str) -> str:
    return f"Endpoint=sb://{host};SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"


def write_ready_file(file: Path, host: str, **changes: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "connection_string": connection_string(host),
        "admin_connection_string": connection_string(f"{host}:5443"),
        "ca_file": "/ca.pem",
    }
    file.write_text(json.dumps(content | changes))
    return file


def test_places_are_tried_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    write_ready_file(Path("twinbus-data/contoso.json"), "local")
    assert find_target(None, None, None, None).connection_string == connection_string("local")
    profiles = {"one": Profile(connection_string("one")), "two": Profile(connection_string("two"))}
    write_profiles(Profiles(profiles, default="two"))
    assert find_target(None, None, None, None).source == "profile two"
    monkeypatch.setenv("TWINBUS_CONNECTION_STRING", connection_string("environment"))
    monkeypatch.setenv("TWINBUS_CA_FILE", "environment.pem")
    target = find_target(None, None, None, [Path("option.pem")])
    assert target.connection_string == connection_string("environment")
    assert target.ca_files == (Path("environment.pem"), Path("option.pem"))
    assert find_target(None, None, "one", None).connection_string == connection_string("one")
    ready_file = write_ready_file(Path("other.json"), "other")
    assert find_target(None, ready_file, None, None).connection_string == connection_string("other")
    assert find_target(connection_string("option"), None, None, None).source == "--connection-string"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{connection_string('stdin')}\n"))
    assert find_target("-", None, None, None).connection_string == connection_string("stdin")


def test_a_ready_file_gives_both_connection_strings_and_the_ca_file() -> None:
    target = find_target(None, write_ready_file(Path("ready.json"), "local"), None, None)
    assert target.admin_connection_string == connection_string("local:5443")
    assert target.ca_files == (Path("/ca.pem"),)
    without = write_ready_file(Path("ready.json"), "local", admin_connection_string=None, ca_file=None)
    target = find_target(None, without, None, None)
    assert target.admin_connection_string == connection_string("local")
    assert target.ca_files == ()


def test_the_secondary_has_places_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINBUS_CONNECTION_STRING", connection_string("primary"))
    with pytest.raises(CommandFailed, match="no secondary namespace is given: use --secondary-ready-file") as failure:
        find_target(None, None, None, None, role=Role.SECONDARY)
    assert failure.value.exit_code == EXIT_MISUSE
    write_ready_file(Path("twinbus-data/contoso-backup.json"), "backup")
    assert find_target(None, None, None, None, role=Role.SECONDARY).connection_string == connection_string("backup")
    monkeypatch.setenv("TWINBUS_SECONDARY_CONNECTION_STRING", connection_string("other"))
    assert find_target(None, None, None, None, role=Role.SECONDARY).connection_string == connection_string("other")


def test_a_repr_never_shows_the_key() -> None:
    target = find_target(connection_string("host"), None, None, None)
    assert "c2VjcmV0" not in repr(target)
    assert "c2VjcmV0" not in repr(Profile(target.connection_string, target.connection_string))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Endpoint=sb://host;SharedAccessKey=c2VjcmV0", "needs either SharedAccessKeyName"),
        ("Endpoint=http://host;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0", "invalid Endpoint"),
        ("", "unknown field"),
    ],
)
def test_an_invalid_connection_string_is_misuse_and_its_key_is_not_shown(text: str, reason: str) -> None:
    with pytest.raises(CommandFailed, match=reason) as failure:
        find_target(text, None, None, None)
    assert failure.value.exit_code == EXIT_MISUSE
    assert "c2VjcmV0" not in str(failure.value)


def test_two_places_in_the_options_are_misuse() -> None:
    with pytest.raises(CommandFailed, match="only one of --connection-string and --profile") as failure:
        find_target(connection_string("host"), None, "one", None)
    assert failure.value.exit_code == EXIT_MISUSE


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_an_invalid_ready_file_is_named(content: str | None) -> None:
    file = Path("ready.json")
    if content is not None:
        file.write_text(content)
    with pytest.raises(CommandFailed, match=r"ready\.json") as failure:
        find_target(None, file, None, None)
    assert failure.value.exit_code == EXIT_FAILED


def test_profiles_survive_a_round_trip_and_only_their_owner_may_read_them() -> None:
    profiles = Profiles(
        {"a.b-c": Profile('Endpoint="\\é😀', "admin", ("/ä ö.pem", "/b.pem"), "contoso")}, default="a.b-c"
    )
    write_profiles(profiles)
    assert read_profiles() == profiles
    assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("host", "name"), [("localhost", "contoso"), ("127.0.0.1", "contoso"), ("fabrikam.example.com", "fabrikam")]
)
def test_the_name_of_a_namespace_comes_from_its_host_or_from_its_ready_file(host: str, name: str) -> None:
    string = f"Endpoint=sb://{host};SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
    Path("ready.json").write_text(json.dumps({"namespace": "contoso", "connection_string": string}))
    assert find_target(None, Path("ready.json"), None, None).find_name() == name
    assert find_target(string, None, None, None).find_name() == (name if name == "fabrikam" else None)


def test_without_a_namespace_the_error_names_the_ready_file_of_a_server_with_another_name() -> None:
    Path("twinbus-data").mkdir()
    Path("twinbus-data/shop.json").touch()
    with pytest.raises(CommandFailed, match=r"no namespace .* --ready-file twinbus-data/shop\.json, --profile"):
        find_target(None, None, None, None)


def test_profiles_that_others_may_read_are_refused() -> None:
    write_profiles(Profiles({"one": Profile(connection_string("one"))}))
    profiles_file().chmod(0o640)
    with pytest.raises(CommandFailed, match="chmod 600"):
        find_target(None, None, "one", None)


def test_an_unknown_profile_is_reported_with_the_known_ones() -> None:
    write_profiles(Profiles({"one": Profile(connection_string("one"))}))
    with pytest.raises(CommandFailed, match=r"no profile 'two' \(profiles: one\)"):
        find_target(None, None, "two", None)


@pytest.mark.parametrize("content", ["profiles = 1", "[profiles.one]\nconnection_string = 1", "secret", "\xff"])
def test_an_invalid_profile_file_is_reported_without_its_content(content: str) -> None:
    write_profiles(Profiles({}))
    profiles_file().write_bytes(content.encode("latin-1"))
    with pytest.raises(CommandFailed, match=r"profiles\.toml is not valid: repair it") as failure:
        find_target(None, None, None, None)
    assert "secret" not in str(failure.value)
