"""The limit of open files is divided between stores and connections."""

from __future__ import annotations

import logging
import resource

import pytest

from twinbus.server.config.settings import StartError
from twinbus.server.runtime.open_file_limit import (
    OTHER_STORE_FILES,
    PROCESS_FILES,
    OpenFileBudget,
    divide_limit,
    plan_open_files,
)
from twinbus.store import rocks_tuning


def test_with_a_high_limit_stores_and_connections_get_their_full_numbers() -> None:
    assert divide_limit(20_000, stores=4, connections=10_000) == OpenFileBudget(
        10_000, rocks_tuning.DEFAULT_TUNING.table_files
    )


@pytest.mark.parametrize("limit", [600, 700, 1_024, 4_096, 11_000])
@pytest.mark.parametrize("stores", [1, 2, 4])
def test_stores_and_connections_together_stay_below_the_limit(limit: int, stores: int) -> None:
    budget = divide_limit(limit, stores=stores, connections=10_000)
    assert PROCESS_FILES + stores * (budget.table_files_per_store + OTHER_STORE_FILES) + budget.connections <= limit
    assert budget.connections >= 64
    assert 32 <= budget.table_files_per_store <= 512


def test_a_limit_too_low_for_the_stores_is_refused_with_advice() -> None:
    with pytest.raises(StartError) as caught:
        divide_limit(256, stores=4, connections=100)
    assert str(caught.value) == (
        "the limit of open files is 256, but 4 stores need at least 528: raise the limit (ulimit -n; LimitNOFILE= in a "
        "systemd unit) or serve fewer stores"
    )


def test_more_connections_than_open_files_cause_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 1_024))
    with caplog.at_level(logging.WARNING):
        assert plan_open_files(stores=4, connections=10_000).connections == 448
    (record,) = caplog.records
    assert record.getMessage() == (
        "--max-connections 10000: with 4 stores and a limit of 1024 open files, 448 connections are accepted at most. "
        "Raise the limit (ulimit -n; LimitNOFILE= in a systemd unit) or lower --max-connections"
    )
