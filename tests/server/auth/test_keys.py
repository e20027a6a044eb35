"""The root key is created once, readable by its owner only, and compared in constant time."""

from __future__ import annotations

import base64
import hmac
import json
import stat
from typing import TYPE_CHECKING

import pytest

from twinbus.server.auth.keys import ALL_RIGHTS, ROOT_KEY_NAME, Key, KeyRing, Right
from twinbus.server.config.settings import StartError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def write_key_file(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_the_first_start_creates_a_root_key_of_32_random_bytes(file: Path) -> None:
    key = KeyRing.load(file).root_key
    assert key is not None
    assert key.name == ROOT_KEY_NAME
    assert len(base64.b64decode(key.primary, validate=True)) == 32
    assert key.rights == ALL_RIGHTS
    assert key != KeyRing.load(file.with_name("other.json")).root_key


def test_the_next_start_loads_the_same_key(file: Path) -> None:
    assert KeyRing.load(file).root_key == KeyRing.load(file).root_key


def test_only_the_owner_can_read_the_file_and_no_temporary_file_is_left(file: Path) -> None:
    KeyRing.load(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(file: Path, mode: int) -> None:
    KeyRing.load(file)
    file.chmod(mode)
    with pytest.raises(StartError, match=rf"keys.json holds a key, but other users .* \(mode {mode:04o}\)"):
        KeyRing.load(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"name": "Root"}',
        '{"name": "Root", "primary": ""}',
        '{"name": "Root", "primary": "very secret; with a blank"}',
        '{"name": "Root", "primary": "very-secret", "tertiary": "very-secret"}',
        '{"name": "Root", "primary": "very-secret\xff"}',
    ],
)
def test_an_invalid_key_file_is_refused_without_showing_its_content(file: Path, text: str) -> None:
    with pytest.raises(StartError, match=r"keys.json is not a key file \(") as caught:
        KeyRing.load(write_key_file(file, text))
    assert "very" not in str(caught.value)


def test_a_file_that_cannot_be_read_or_created_is_refused(file: Path) -> None:
    file.mkdir()
    with pytest.raises(StartError, match="cannot be read: Is a directory"):
        KeyRing.load(file)
    with pytest.raises(StartError, match="cannot be written: No such file or directory"):
        KeyRing.load(file.parent / "missing" / "keys.json")


def test_a_key_can_have_a_second_secret_during_rotation(file: Path) -> None:
    ring = KeyRing.load(write_key_file(file, '{"name": "Root", "primary": "new", "secondary": "old"}'))
    assert ring.check_password("Root", "new") == ring.check_password("Root", "old") == ALL_RIGHTS


@pytest.mark.parametrize(("secrets", "warns"), [({"primary": "short"}, True), ({"primary": "x" * 16}, False)])
def test_a_short_secret_of_an_earlier_version_is_accepted_with_a_warning(
    file: Path, caplog: pytest.LogCaptureFixture, secrets: dict[str, str], *, warns: bool
) -> None:
    ring = KeyRing.load(write_key_file(file, json.dumps({"name": "Root", **secrets})))
    assert ring.check_password("Root", secrets["primary"]) == ALL_RIGHTS
    assert ("fewer than 16 characters" in caplog.text) == warns
    assert secrets["primary"] not in caplog.text


def test_a_password_is_valid_only_for_its_own_key_name() -> None:
    ring = KeyRing([Key("one", "secret 1"), Key("two", "secret 2", rights=frozenset({Right.LISTEN}))])
    assert ring.check_password("one", "secret 1") == ALL_RIGHTS
    assert ring.check_password("two", "secret 2") == frozenset({Right.LISTEN})
    for name, secret in [
        ("one", "secret 2"),
        ("two", "secret 1"),
        ("", ""),
        ("three", ""),
        ("one", ""),
        ("one", "\ud800"),
    ]:
        assert ring.check_password(name, secret) is None


def test_an_unknown_name_and_a_wrong_secret_cost_the_same_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    ring = KeyRing([Key("one", "secret 1", "secret 2")])
    for name, secret in [("one", "secret"), ("nobody", "secret"), ("one", "x" * 10_000)]:
        compared.clear()
        assert ring.check_password(name, secret) is None
        assert compared == [(32, 32), (32, 32)]


def test_a_key_is_found_by_its_name_and_its_repr_shows_no_secret() -> None:
    key = Key("one", "secret 1", "secret 2")
    ring = KeyRing([key])
    assert ring.find("one") is key
    assert ring.find("ONE") is None
    assert "secret" not in repr(key) + str(key) + repr(ring)
