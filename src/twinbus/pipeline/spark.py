"""Spark, as every job of ours wants it.

    with session("twinbus capture", master="local[2]") as spark:
        spark.read.format("servicebus")...

Owns: that Java and PySpark are there, that Spark's Python workers run this very interpreter, and the settings that all
jobs share. On a cluster `twinbus` has to be installed on each machine, or to be brought there (`docs/pipeline.md`).
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
"""The oldest that Spark 4 runs on."""
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
"""For a master on this machine: nothing listens beyond it."""


@contextlib.contextmanager
def session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session with our data sources; it ends with the block. PipelineError where Java or PySpark is missing."""
    spark = start_session(name, master=master, settings=settings)
    try:
        yield spark
    finally:
        spark.stop()


def start_session(name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """The same, to be stopped by whoever asked for it."""
    _check_java()
    builder_class = _session_builder()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # on a cluster it may lie elsewhere
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = master or DEFAULT_MASTER
    builder = builder_class.appName(name).master(master)
    is_here = master.startswith("local") or "//127.0.0.1" in master or "//localhost" in master
    for key, value in {**_SPARK_SETTINGS, **(_LOOPBACK_SETTINGS if is_here else {}), **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise PipelineError(f"Spark does not start on {master}, if that is a master: {first_line(error)}") from error
    spark.sparkContext.setLogLevel("ERROR")
    from twinbus.pipeline import register  # noqa: PLC0415  # needs PySpark, which was looked for above

    register(spark)
    return spark


def register_data_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Let a session use a data source. One that can already stays as it is."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  # who has a session has PySpark

    try:
        spark.dataSource.register(source)
    except PySparkException as error:  # a copy of a session, as `foreachBatch` has one, has its sources already
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def first_line(error: BaseException) -> str:
    """What a Java exception says, without the stack that it brings along."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def failure_reason(error: BaseException) -> str:
    """Why a job failed: what Python said last, in a task or before it, else what Java did; without their stacks."""
    lines = str(error).split("JVM stacktrace")[0].splitlines()
    ours = [line for line in str(error).splitlines() if "PipelineError: " in line]
    if ours:
        return ours[-1].split("PipelineError: ", 1)[1]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    plain = [line.removeprefix(": ") for line in lines if line and not line[0].isspace()]
    return (causes or plain or [type(error).__name__])[-1]


def _session_builder() -> SparkSession.Builder:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  # the rest of twinbus works without
    except ImportError as error:
        raise PipelineError("PySpark is not installed: pip install 'twinbus[spark]'") from error
    return SparkSession.builder


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    how = (
        f"Spark needs Java {MIN_JAVA_VERSION} or newer: install it (on Debian: apt-get install openjdk-17-jre-headless)"
    )
    if java is None or not Path(java).is_file():
        where = f"there is none at {java}, where JAVA_HOME points" if java else "there is none"
        raise PipelineError(f"{how}; {where}")
    try:
        said = subprocess.run(  # noqa: S603  # the user's own Java
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_CHECK_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError(f"{how}; {java} does not run: {error}") from error
    found = _JAVA_VERSION_PATTERN.search(said)
    if found is None or int(found[1]) < MIN_JAVA_VERSION:
        raise PipelineError(f"{how}; {java} is version {found[1] if found else 'unknown'}")
