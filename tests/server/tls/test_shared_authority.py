"""All namespaces of a user share one development CA, which clients trust by one file."""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from twinbus.server.config.settings import ServeSettings, StartError
from twinbus.server.runtime.data_directory import DataDirectory
from twinbus.server.runtime.live_settings import choose_certificate
from twinbus.server.tls.development_authority import choose_authority_directory
from twinbus.server.tls.development_certificates import ensure_development_certificate

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.server.tls.certificates import Certificate

NOW = dt.datetime.now(dt.UTC)
OTHER_USER = 12_345
CREATE = """
import sys, datetime as dt
from pathlib import Path
from twinbus.server.tls.development_authority import choose_authority_directory
from twinbus.server.tls.development_certificates import ensure_development_certificate
own = Path(sys.argv[1])
ensure_development_certificate(own, "127.0.0.1", dt.datetime.now(dt.UTC), choose_authority_directory(own))
"""


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration folder, which does not exist yet."""
    folder = tmp_path / "home" / ".config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def certificate_of(data: Path) -> Certificate:
    with DataDirectory(data) as directory:
        return choose_certificate(ServeSettings(name="contoso", data=data), directory)


def test_two_namespaces_share_one_ca(tmp_path: Path, configuration: Path) -> None:
    certificates = [certificate_of(tmp_path / name) for name in ("contoso", "contoso-backup")]
    assert {certificate.ca_file for certificate in certificates} == {configuration / "twinbus" / "ca.pem"}
    assert len({certificate.certificate_file for certificate in certificates}) == 2
    authority = read(configuration / "twinbus" / "ca.pem")
    for certificate in certificates:
        read(certificate.certificate_file).verify_directly_issued_by(authority)
        assert not (certificate.certificate_file.parent / "ca.pem").exists()


def test_without_the_variable_the_ca_is_in_the_home_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert certificate_of(tmp_path / "data").ca_file == tmp_path / ".config" / "twinbus" / "ca.pem"


def test_only_the_user_can_read_the_key_of_the_ca(tmp_path: Path, configuration: Path) -> None:
    certificate_of(tmp_path / "data")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (configuration / "twinbus").iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644}
    assert stat.S_IMODE((configuration / "twinbus").stat().st_mode) == 0o700


def test_a_key_that_other_users_may_read_is_refused(tmp_path: Path, configuration: Path) -> None:
    certificate_of(tmp_path / "one")
    (configuration / "twinbus" / "ca.key").chmod(0o644)
    with pytest.raises(StartError, match=r"ca\.key holds a key, but other users may read"):
        certificate_of(tmp_path / "two")


def test_servers_that_start_at_the_same_time_create_one_ca(tmp_path: Path, configuration: Path) -> None:
    owns = [tmp_path / str(number) / "tls" for number in range(4)]
    processes = [subprocess.Popen([sys.executable, "-c", CREATE, str(own)]) for own in owns]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    authority = read(configuration / "twinbus" / "ca.pem")
    for own in owns:
        read(own / "server.pem").verify_directly_issued_by(authority)


def test_a_data_directory_with_its_own_ca_keeps_it(tmp_path: Path, configuration: Path) -> None:
    with DataDirectory(tmp_path / "data") as directory:
        before = ensure_development_certificate(directory.tls_directory, "127.0.0.1", NOW)  # as earlier versions did
    assert before.ca_file is not None
    content = before.ca_file.read_bytes(), before.certificate_file.read_bytes()
    after = certificate_of(tmp_path / "data")
    assert after == before
    assert content == (before.ca_file.read_bytes(), after.certificate_file.read_bytes())
    assert not configuration.exists()


def test_without_a_usable_configuration_folder_the_ca_is_in_the_data_directory(
    tmp_path: Path, configuration: Path
) -> None:
    configuration.parent.mkdir()
    configuration.write_text("a file is in the way")
    assert certificate_of(tmp_path / "data").ca_file == tmp_path / "data" / "tls" / "ca.pem"
    assert certificate_of(tmp_path / "data").ca_file == tmp_path / "data" / "tls" / "ca.pem"


def test_the_configuration_of_another_user_is_not_used(
    tmp_path: Path, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `sudo`, which may keep the HOME of the user who called it."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER)
    assert choose_authority_directory(tmp_path / "tls") == tmp_path / "tls"
    assert not configuration.exists()


def test_a_configuration_folder_without_locks_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    assert choose_authority_directory(tmp_path / "data" / "tls") == tmp_path / "data" / "tls"
