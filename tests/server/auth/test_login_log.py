"""Failed logins are logged, but so few of them that they cannot fill a disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twinbus.broker.clock import Timers
from twinbus.server.auth import login_log
from twinbus.server.auth.login_log import MAX_RECORDS_PER_WINDOW, WINDOW_S, LoginLog
from twinbus.server.auth.sas import LoginFailed
from twinbus.testing.clock import FakeClock

if TYPE_CHECKING:
    import pytest


def test_beyond_the_limit_failed_logins_are_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, login_log.__name__)
    clock = FakeClock()
    timers = Timers(clock)
    logins = LoginLog(clock, timers, lambda name: name == "app")
    for _ in range(1_000):
        logins.record_failure("http", "10.0.0.1:5", LoginFailed("", "wrong key name or signature", ("ap%70", "app")))
    assert [record.getMessage() for record in caplog.records] == ["a login failed"] * MAX_RECORDS_PER_WINDOW
    assert {record.__dict__["key_name"] for record in caplog.records} == {"app"}
    caplog.clear()
    clock.advance(WINDOW_S)
    timers.run_due()
    assert [record.getMessage() for record in caplog.records] == [
        f"{1_000 - MAX_RECORDS_PER_WINDOW} more logins failed within 10 s"
    ]
    logins.record_failure("cbs", "10.0.0.1:5", LoginFailed("", "expired token", ("somebody",)))
    assert caplog.records[-1].__dict__["key_name"] == "unknown"
