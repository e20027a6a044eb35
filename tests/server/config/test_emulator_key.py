"""The emulator key is valid only with its option, in addition to the server's own keys, and on loopback addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinbus.model.signature import make_token
from twinbus.server.auth.keys import ALL_RIGHTS, EMULATOR_SECRET, ROOT_KEY_NAME, Key, KeyRing
from twinbus.server.auth.sas import verify
from twinbus.server.config.settings import ConfigurationError, ServeSettings


def test_the_emulator_key_is_an_additional_secret_of_the_root_key() -> None:
    ring = KeyRing([Key(ROOT_KEY_NAME, "own"), Key("other", "x")])
    assert ring.check_password(ROOT_KEY_NAME, EMULATOR_SECRET) is None
    extended = ring.with_emulator_key()
    assert extended.check_password(ROOT_KEY_NAME, EMULATOR_SECRET) == ALL_RIGHTS
    assert extended.check_password(ROOT_KEY_NAME, "own") == ALL_RIGHTS
    assert extended.root_key is not None
    assert extended.root_key.primary == "own"
    assert extended.check_password("other", "x")


def test_the_emulator_key_is_a_separate_key_if_the_root_key_has_another_name() -> None:
    ring = KeyRing([Key("root", "own", "second")]).with_emulator_key()
    assert ring.check_password(ROOT_KEY_NAME, EMULATOR_SECRET) == ALL_RIGHTS
    assert ring.check_password("root", "second") == ALL_RIGHTS
    assert ring.root_key is not None
    assert ring.root_key.name == "root"


def test_all_secrets_of_the_root_key_stay_valid_with_the_emulator_key() -> None:
    ring = KeyRing([Key(ROOT_KEY_NAME, "own", "second")]).with_emulator_key()
    for secret in ("own", "second", EMULATOR_SECRET):
        assert ring.check_password(ROOT_KEY_NAME, secret) == ALL_RIGHTS
        token = make_token("sb://h/q", ROOT_KEY_NAME, secret, 2_000_000_000)
        assert verify(token, "q", ring, 1_800_000_000).secret == secret


def test_no_other_key_replaces_the_root_key() -> None:
    with pytest.raises(ConfigurationError, match="the data directory has a key named 'root' already"):
        KeyRing([Key("root", "own")]).with_keys([Key("root", "other")])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_every_loopback_address_is_allowed_with_the_emulator_key(host: str) -> None:
    assert ServeSettings(name="contoso", data=Path("d"), host=host, emulator_key=True).emulator_key
