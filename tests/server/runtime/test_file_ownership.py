"""Files of a data directory that belong to another user, or that other users may read, are refused."""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from twinbus.model.errors import StoreUnavailable
from twinbus.server.auth.keys import KeyRing
from twinbus.server.config.settings import StartError
from twinbus.server.runtime import data_directory
from twinbus.server.runtime.data_directory import DataDirectory
from twinbus.server.tls.development_certificates import ensure_development_certificate
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    from pathlib import Path


FILES = ("format", "stores.json", "keys.json", "catalogue.db", "tls/ca.pem", "tls/ca.key", "tls/server.key")
OTHER = 12_345


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory with all files that a server creates."""
    path = tmp_path / "data"
    with DataDirectory(path) as data:
        KeyRing.load(data.keys_file)
        Catalogue(data.catalogue_file).close()
        data.ensure_stores(1, ())
        ensure_development_certificate(data.tls_directory, "127.0.0.1", dt.datetime.now(dt.UTC))
    DataDirectory(path).close()
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_symbolic_link_is_refused_and_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder / name, elsewhere)
    (folder / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises(StartError, match=rf"{name} is a symbolic link, which is not followed: put the file itself"):
        DataDirectory(folder)
    assert elsewhere.read_bytes() == before


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_user_is_refused(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(folder / name, OTHER, -1)
        own = 0
    else:  # only root can change the owner of a file, so pretend to be another user
        own = OTHER
        monkeypatch.setattr(os, "geteuid", lambda: own)
        name = "format"
    with pytest.raises(
        StartError, match=rf"{name} belongs to user [0-9]+, but the server runs as user {own}: .* chown"
    ):
        DataDirectory(folder)


@pytest.mark.parametrize("name", ["keys.json", "tls/ca.key", "tls/server.key"])
def test_a_key_that_others_may_read_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0o640)
    with pytest.raises(StartError, match=rf"{name} holds a key, but other users .* \(mode 0640\): .* chmod 600"):
        DataDirectory(folder)


def test_symbolic_links_are_refused_when_a_file_is_opened(folder: Path, tmp_path: Path) -> None:
    """Also if they are created after the directory was checked."""
    for name in ("keys.json", "catalogue.db"):
        (folder / name).unlink()
        (folder / name).symlink_to(tmp_path / f"new-{name}")
    with pytest.raises(StartError, match=r"keys.json is a symbolic link"):
        KeyRing.load(folder / "keys.json")
    with pytest.raises(StoreUnavailable, match=r"catalogue.db cannot be opened: .*symbolic links"):
        Catalogue(folder / "catalogue.db")
    assert not (tmp_path / "new-keys.json").exists()
    assert not (tmp_path / "new-catalogue.db").exists()


@pytest.mark.parametrize(("mode", "warns"), [(0o700, False), (0o755, False), (0o770, True), (0o777, True)])
def test_a_directory_that_others_can_write_to_causes_a_warning(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture, *, warns: bool
) -> None:
    caplog.set_level(logging.WARNING, data_directory.__name__)
    folder.chmod(mode)
    DataDirectory(folder).close()
    assert ("other users can change the data directory" in caplog.text) == warns
