"""Fixture that configures the SASL passwords of proton servers."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.interop.proton_peers import PASSWORD, REALM, USER

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _passwords_of_proton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the SASL configuration before the first proton server starts: Cyrus SASL reads it once per process."""
    folder = tmp_path_factory.mktemp("sasl")
    program = shutil.which("saslpasswd2", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "saslpasswd2 is missing: it comes with sasl2-bin"
    subprocess.run(
        [program, "-p", "-c", "-f", folder / "passwords", "-u", REALM, USER], input=PASSWORD.encode(), check=True
    )
    (folder / "proton-server.conf").write_text(
        f"pwcheck_method: auxprop\nauxprop_plugin: sasldb\nsasldb_path: {folder / 'passwords'}\n"
        "mech_list: PLAIN ANONYMOUS\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PN_SASL_CONFIG_PATH", str(folder))
        yield
