"""Every log record is one line, as text or JSON, without keys and signatures."""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from typing import TYPE_CHECKING

import pytest

from twinbus.model.signature import make_token
from twinbus.server.auth.sas import Token
from twinbus.server.runtime import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "c2VjcmV0/c2VjcmV0+c2VjcmV0="
logger = logging.getLogger("twinbus.server.example")


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def text() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    return stream


@pytest.fixture
def as_json() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    return stream


def test_a_line_has_time_level_logger_message_and_extra_fields(text: io.StringIO) -> None:
    record = logger.makeRecord(
        logger.name, logging.WARNING, "f", 1, "link %s", ("attached",), None, extra={"link": "a b", "credit": 10}
    )
    record.created = 1_794_790_923.456
    logger.handle(record)
    assert text.getvalue() == (
        '2026-11-16T01:02:03.456Z warning twinbus.server.example link attached link="a b" credit=10\n'
    )


def test_json_has_the_same_fields_and_one_object_per_line(as_json: io.StringIO) -> None:
    logger.info("link %s", "attached", extra={"credit": 10, "link": "a\nb", "path": object})
    logger.debug("two")
    first, second = map(json.loads, as_json.getvalue().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "info",
        "logger": "twinbus.server.example",
        "message": "link attached",
        "credit": 10,
        "link": "a\nb",
        "path": "<class 'object'>",
    }
    assert second["message"] == "two"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_any_record_is_one_line(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure("info", log_format, stream)
    logger.info(
        "from a client: %s", "x\r\n2026-11-16T01:02:03.456Z error forged\u2028\x1b[2J\x85\ud800", extra={"k": "a\nb"}
    )
    assert stream.getvalue().count("\n") == 1
    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_part_of_its_record(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure("info", log_format, stream)
    try:
        int(f"SharedAccessKey={SECRET}")
    except ValueError:
        logger.exception("it failed")
    (line,) = stream.getvalue().splitlines()
    assert "it failed" in line
    assert "SharedAccessKey=***" in line
    assert SECRET not in line
    assert "test_logs.py" in line


def test_records_below_the_level_are_not_logged(text: io.StringIO) -> None:
    logger.debug("hush")
    assert text.getvalue() == ""


def test_python_warnings_are_logged(text: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(capture=True)
        warnings.warn("soon gone", DeprecationWarning, stacklevel=1)
    assert "warning py.warnings" in text.getvalue()
    assert text.getvalue().count("\n") == 1


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_signatures_and_keys_are_masked_everywhere(log_format: str) -> None:
    token = make_token("sb://localhost/orders", "Root", SECRET, 1_800_000_000)
    encoded_signature = re.findall("sig=([^&]+)", token)[0]
    stream = io.StringIO()
    logs.configure("info", log_format, stream)
    string = (
        f"Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey={SECRET};UseDevelopmentEmulator=true"
    )
    logger.info("put-token %s", token, extra={"connection_string": string, "nested": {"token": token}})
    line = stream.getvalue()
    for secret in (SECRET, encoded_signature, Token.parse(token).signature):
        assert secret not in line
    assert "sig=***&se=1800000000&skn=Root" in line
    assert "SharedAccessKeyName=Root;SharedAccessKey=***;UseDevelopmentEmulator=true" in line
    if log_format == "json":
        assert json.loads(line)["nested"]["token"].endswith("sig=***&se=1800000000&skn=Root")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("?sig=abc%2Fdef%3D&x=1", "?sig=***&x=1"),
        ("url=sr%3Da%26sig%3Dabc%26se%3D1", "url=sr%3Da%26sig%3D***"),
        ("SIG=abc", "SIG=***"),
        ("sharedaccesskey=abc;x", "sharedaccesskey=***;x"),
        ("design=good", "design=good"),
        ("sig=", "sig="),
    ],
)
def test_only_signatures_and_keys_are_masked(text: str, masked: str) -> None:
    assert logs.mask_secrets(text) == masked
