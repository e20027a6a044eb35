"""Spark sessions with the settings that all twinbus jobs share.

    with session("twinbus capture", master="local[2]") as spark:
        spark.read.format("servicebus")...

Owns the checks for Java and PySpark, the choice of this Python interpreter for Spark's workers, and the common
settings. On a cluster, `twinbus` must be installed on each machine or shipped with the job (`docs/pipeline.md`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

MIN_JAVA_VERSION: Final = 17
"""The oldest Java version that Spark 4 supports."""
DEFAULT_MASTER: Final = "local[*]"
_JAVA_CHECK_TIMEOUT_S: Final = 20.0
_JAVA_VERSION_PATTERN: Final = re.compile(r'version "(\d+)')
_SPARK_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": "-Dlog4j2.level=ERROR",
}
_LOOPBACK_SETTINGS: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""Settings for a master on this machine: Spark listens on the loopback interface only."""


@contextlib.contextmanager
def session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Run a Spark session with twinbus's data sources. Raise PipelineError if Java or PySpark is missing.

    The session stops at the end of the block.
    """
    spark = start_session(name, master=master, settings=settings)
    try:
        yield spark
    finally:
        spark.stop()


def start_session(name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a Spark session with twinbus's data sources. The caller must stop the session."""
    _check_java()
    builder_class = _session_builder()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # a cluster may have Python at another path
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = master or DEFAULT_MASTER
    builder = builder_class.appName(name).master(master)
    is_local = master.startswith("local") or "//127.0.0.1" in master or "//localhost" in master
    for key, value in {**_SPARK_SETTINGS, **(_LOOPBACK_SETTINGS if is_local else {}), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise PipelineError(f"Spark cannot start on master {master}: {first_line(error)}") from error
    spark.sparkContext.setLogLevel("ERROR")
    from twinbus.pipeline import register  # noqa: PLC0415  # needs PySpark, which was checked above

    register(spark)
    return spark


def register_data_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source with a session. A data source that is already registered is kept."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  # the caller has PySpark

    try:
        spark.dataSource.register(source)
    except PySparkException as error:  # `foreachBatch` copies the session with its data sources
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, without Java's stack trace."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def failure_reason(error: BaseException) -> str:
    """Return why a job failed, without stack traces.

    The text of a PipelineError comes first, then Java's last `Caused by`, then the last line that is not indented.
    """
    lines = str(error).split("JVM stacktrace")[0].splitlines()
    pipeline_errors = [line for line in str(error).splitlines() if "PipelineError: " in line]
    if pipeline_errors:
        return pipeline_errors[-1].split("PipelineError: ", 1)[1]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    plain = [line.removeprefix(": ") for line in lines if line and not line[0].isspace()]
    return (causes or plain or [type(error).__name__])[-1]


def _session_builder() -> SparkSession.Builder:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  # the other packages work without PySpark
    except ImportError as error:
        raise PipelineError("PySpark is not installed: pip install 'twinbus[spark]'") from error
    return SparkSession.builder


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = (
        f"Spark needs Java {MIN_JAVA_VERSION} or newer: install it (on Debian: apt-get install openjdk-17-jre-headless)"
    )
    if java is None or not Path(java).is_file():
        reason = f"JAVA_HOME points to {java}, which does not exist" if java else "no java on the PATH"
        raise PipelineError(f"{advice}; {reason}")
    try:
        version_output = subprocess.run(  # noqa: S603  # the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_CHECK_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError(f"{advice}; {java} does not run: {error}") from error
    match = _JAVA_VERSION_PATTERN.search(version_output)
    if match is None or int(match[1]) < MIN_JAVA_VERSION:
        raise PipelineError(f"{advice}; {java} is version {match[1] if match else 'unknown'}")
