"""Error messages of the pipeline commands: one line for a failure of Spark, and the name of a missing package."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer
from pyspark.errors import PySparkException

from twinbus.cli.pipeline.app import reported_errors
from twinbus.pipeline.spark import failure_reason

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WITHOUT = """
import sys
sys.modules[sys.argv.pop(1)] = None
from twinbus.cli.main import app
app(["pipeline", *sys.argv[1:]])
"""
NAMESPACE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
@pytest.mark.parametrize("arguments", [("audit", "."), ("replay", NAMESPACE, ".", "orders"), ("costs", ".")])
def test_a_missing_package_is_named(package: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"twinbus pipeline {arguments[0]}: {package} is not installed: pip install 'twinbus[spark]'" in (
        done.stderr.replace("PySpark", "pyspark")
    )


def test_a_failed_job_is_reported_without_a_stack_trace(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(typer.Exit), reported_errors("costs"):
        spark.range(1).write.parquet(str(tmp_path / "file" / "below"))
    output = capsys.readouterr().err
    assert output.startswith("twinbus pipeline costs: Spark failed: ")
    assert len(output.splitlines()) == 1


def test_errors_that_are_not_from_spark_are_not_hidden() -> None:
    with pytest.raises(KeyError), reported_errors("costs"):
        raise KeyError("a fault of ours")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "in a task\n  File x\ntwinbus.PipelineError: no such entity\n\nJVM stacktrace:\n  at y",
            "no such entity",
        ),
        ("An error occurred while calling o1.x.\n: java.X: a\n\tat y\nCaused by: java.Y: b\n\tat z", "java.Y: b"),
        ("An error occurred while calling o1.x.\n: java.X: a\n\tat y", "java.X: a"),
    ],
)
def test_the_failure_reason_is_the_last_cause_that_spark_names(text: str, reason: str) -> None:
    assert failure_reason(PySparkException(text)) == reason
