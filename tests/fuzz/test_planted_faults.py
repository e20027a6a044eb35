"""Planted faults: the fuzzer finds each kind of fault planted in the engine, and a finding can be replayed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fuzz import campaign, codec_targets
from tests.fuzz.campaign import replay, run
from twinbus.amqp.codec.decode import decode
from twinbus.amqp.connection import Connection
from twinbus.amqp.session import Session
from twinbus.amqp.types import Described

if TYPE_CHECKING:
    from twinbus.amqp.events import Event

ROOT = Path(__file__).parents[2]
SEED = 2
MAX_INPUTS = 4_000


def first_finding(folder: Path, numbers: range = range(MAX_INPUTS)) -> str:
    """Return the text of the first finding of a run."""
    (path,) = run(SEED, numbers, findings=folder).findings
    return path.read_text()


def test_the_fuzzer_finds_an_exception_that_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def receive_flow(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Session, "receive_flow", receive_flow)
    assert "KeyError: 'planted'" in first_finding(tmp_path)


def test_the_fuzzer_finds_an_exception_in_a_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(*_: object) -> list[Event]:
        raise OverflowError("planted")

    monkeypatch.setattr(Connection, "tick", tick)
    assert "OverflowError: planted" in first_finding(tmp_path)


def test_the_fuzzer_finds_an_endless_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def receive_detach(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(campaign, "TIME_LIMIT_S", 0.2)
    monkeypatch.setattr(Session, "receive_detach", receive_detach)
    assert "Hang: one input took more than" in first_finding(tmp_path)


def test_the_fuzzer_finds_memory_that_grows_with_every_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaked = []
    make_server = Connection.server

    def server(*arguments: object, **options: object) -> Connection:
        leaked.append(b"planted" * 80_000)  # more than the free memory of a process that has run for a while
        return make_server(*arguments, **options)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(Connection, "server", server)
    assert "Finding: memory grew by" in first_finding(tmp_path)


def test_the_fuzzer_finds_memory_out_of_proportion_to_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive_attach = Session.receive_attach

    def leaking_receive_attach(session: Session, attach: object, events: list[Event]) -> None:
        session.hoard = [b"planted %d" % number for number in range(10_000)]  # type: ignore[attr-defined]
        receive_attach(session, attach, events)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(Session, "receive_attach", leaking_receive_attach)
    assert "Finding: memory held is in proportion" in first_finding(tmp_path)


def test_the_fuzzer_finds_a_link_whose_end_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_announce_detached", lambda *_, **__: None)
    assert "Finding: every link is told to be over" in first_finding(tmp_path)


def test_the_fuzzer_finds_an_end_that_is_reported_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receive_eof = Connection.receive_eof

    def faulty_receive_eof(connection: Connection) -> list[Event]:
        connection._is_dropped = False  # noqa: SLF001  # the fault
        return receive_eof(connection)

    monkeypatch.setattr(Connection, "receive_eof", faulty_receive_eof)
    assert "Finding: nothing is told after the last event" in first_finding(tmp_path)


def test_the_fuzzer_finds_a_wrong_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "count_assembling", lambda self, change: setattr(self, "_assembling_bytes", change))
    assert "Finding: " in first_finding(tmp_path)


def test_the_fuzzer_finds_truncated_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_to_send = Connection.data_to_send
    monkeypatch.setattr(Connection, "data_to_send", lambda self: data_to_send(self)[:-1])
    assert "Finding: whole frames are sent" in first_finding(tmp_path)


def test_the_fuzzer_finds_output_after_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_to_send = Connection.data_to_send
    monkeypatch.setattr(
        Connection, "data_to_send", lambda self: data_to_send(self) + b"\x00\x00\x00\x08\x02\x00\x00\x00"
    )
    assert "Finding: " in first_finding(tmp_path)


def test_the_fuzzer_finds_a_decoder_that_raises_another_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty_decode(data: bytes, *arguments: object) -> tuple[object, int]:
        value, end = decode(data, *arguments)  # type: ignore[arg-type]  # passed through
        if isinstance(value, Described):
            raise TypeError("planted")
        return value, end

    monkeypatch.setattr(codec_targets, "decode", faulty_decode)
    assert "TypeError: planted" in first_finding(tmp_path)


def test_a_finding_can_be_replayed_until_it_is_fixed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "receive_flow", None)
        (path,) = run(SEED, range(MAX_INPUTS), findings=tmp_path).findings
        assert isinstance(replay(path), TypeError)
    assert replay(path) is None


def test_the_command_fails_and_prints_how_to_replay(tmp_path: Path) -> None:
    script = """
import sys
from tests.fuzz.__main__ import main
from twinbus.amqp.session import Session
Session.receive_flow = None
sys.exit(main())
"""
    command = [
        "-c",
        script,
        "--inputs",
        str(MAX_INPUTS),
        "--seed",
        "2",
        "--processes",
        "1",
        "--findings",
        str(tmp_path),
    ]
    sources = {**os.environ, "PYTHONPATH": "src"}  # compiled modules cannot be patched
    completed = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False, env=sources
    )
    assert completed.returncode == 1
    (path,) = tmp_path.iterdir()
    assert f"FOUND: {path}  once more: python -m tests.fuzz --replay {path}" in completed.stdout
    again = [sys.executable, "-m", "tests.fuzz", "--replay", str(path)]
    assert "nothing found" in subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=True).stdout
