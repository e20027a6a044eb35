"""Microsoft's sample works as shipped, with its comments; so do the short duplicate windows that its schema allows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.config.applied_config import apply_config, emulator_config
from tests.support.in_process_server import run_server_in_process
from twinbus.model.entity_file.file import UnterminatedComment, blank_comments
from twinbus.server.config.file import read_config
from twinbus.server.config.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

SAMPLE = Path(__file__).with_name("emulator_sample.json")


def shipped_sample() -> str:
    """The sample as in the emulator's repository, where all but one property of the first filter are commented out."""
    text = SAMPLE.read_text()
    text = text.replace('"ContentType": "application/text",\n', '"ContentType": "application/json"\n')
    margin = " " * 24
    commented = re.sub(rf"^{margin}(?=\"(?:CorrelationId|Label|MessageId|ReplyTo|ReplyToSessionId|SessionId|To)\")",
                       f"{margin}// ", text, flags=re.MULTILINE)  # fmt: skip
    return commented.replace(f'{margin}// "Correl', f'{margin}// Other supported properties\n{margin}// "Correl')


async def test_the_sample_is_accepted_with_the_comments_that_microsoft_ships(tmp_path: Path) -> None:
    text = shipped_sample()
    assert len(re.findall(r"^ +// ", text, re.MULTILINE)) == 8
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    entities = await apply_config(tmp_path, "Config.json", text)
    assert set(entities) == {
        "queue.1",
        "topic.1",
        *(f"topic.1/Subscriptions/subscription.{number}" for number in range(1, 5)),
    }
    condition: Any = entities["topic.1/Subscriptions/subscription.1"].rules["app-prop-filter-1"].filter
    assert (condition.content_type, condition.label, condition.to) == ("application/json", None, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "//", "b": "/* x */"} // end', {"a": "//", "b": "/* x */"}),
        (r'{"a": "\"// x", "b\\": 1 /* "c": 2, */ } // "', {"a": '"// x', "b\\": 1}),
        ("/**/[/***/1/* ] */,\r\n2//, 3]\r\n]", [1, 2]),
        ('[1, //"\n2]', [1, 2]),
        ('["http://x/*"]/**/', ["http://x/*"]),
    ],
)
def test_a_comment_is_skipped_and_text_in_a_string_is_no_comment(text: str, value: object) -> None:
    assert json.loads(blank_comments(text)) == value


def test_an_error_after_comments_names_the_line_and_column_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "Config.json"
    for text, reason in (
        ('{ // one\n /* two\n three */ "UserConfig": }', "line 3, column 25: Expecting value"),
        ('{\n  /* "UserConfig": {}', "line 2, column 3: the comment is not closed: add */"),
        ("{} /*/", "line 1, column 4: the comment is not closed: add */"),
        ('{"a": / 1}', "line 1, column 7: Expecting value"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=re.escape(f"{file}: {reason}")):
            read_config(file, None)
    with pytest.raises(UnterminatedComment):
        blank_comments("/*")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("windows")
    short = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT5S"}
    topic = {"Name": "events", "Properties": short, "Subscriptions": [{"Name": "all"}]}
    file = folder / "Config.json"
    file.write_text(emulator_config(queues=[{"Name": "orders", "Properties": short}], topics=[topic]))
    with run_server_in_process(folder, plan=read_config(file, None)["plan"]) as server:
        yield server


def test_q26_the_emulators_file_allows_duplicate_windows_from_5_s(server: ServerProcess, tmp_path: Path) -> None:
    for entity in ("orders", "events"):
        assert "<DuplicateDetectionHistoryTimeWindow>PT5S</" in server.request("GET", entity, expected=200)
    file = tmp_path / "Config.json"
    file.write_text(
        emulator_config(queues=[{"Name": "q", "Properties": {"DuplicateDetectionHistoryTimeWindow": "PT4S"}}])
    )
    with pytest.raises(ConfigurationError, match=r"DuplicateDetectionHistoryTimeWindow: PT4S: it can be PT5S to P7D"):
        read_config(file, None)


def test_q26_http_and_toml_require_a_duplicate_window_of_at_least_20_s(server: ServerProcess, tmp_path: Path) -> None:
    window = "DuplicateDetectionHistoryTimeWindow"
    properties = {"RequiresDuplicateDetection": "true", window: "PT5S"}
    server.update_queue("orders", **properties)  # unchanged: an SDK may write back what it has read
    for text in ("PT6S", "PT19.999S"):
        with pytest.raises(AssertionError, match=r"400 .*it can be 20000 to 604800000"):
            server.update_queue("orders", **{**properties, window: text})
    with pytest.raises(AssertionError, match=r"400 .*duplicate_window_ms is 5000"):
        server.create_queue(**properties)
    server.create_queue(**{**properties, window: "PT20S"})
    file = tmp_path / "twinbus.toml"
    file.write_text('[[queues]]\nname = "q"\nduplicate_window = "PT19S"')
    with pytest.raises(ConfigurationError, match=r"duplicate_window: PT19S: it can be PT20S to P7D"):
        read_config(file, None)
