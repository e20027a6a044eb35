"""Archives the Java classes that Spark loads, so that the JVMs of the tests start faster.

    python tools/archive_spark.py FILE

In a test, a JVM of Spark spends half of its time loading and verifying the same eight thousand classes. With class data
sharing, the first JVM writes them to an archive when it exits; `tests/pipeline/conftest.py` makes the other JVMs use
this archive. Java ignores an archive that does not match the installed Java or Spark.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

TUNED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The options of the tests: only a JVM with the same garbage collector can use the archive."""


def main() -> None:
    """Run a typical job, which writes and reads, and archive its classes."""
    place = Path(sys.argv[1]).resolve()
    part = place.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = f"{TUNED} -XX:ArchiveClassesAtExit={part} -Xlog:cds=off -Xlog:cds+dynamic=off"
    from twinbus.pipeline.spark import session  # noqa: PLC0415  # Java reads the variable above when it starts

    with session("archive", master="local[1]") as spark, tempfile.TemporaryDirectory() as folder:
        spark.sql("SELECT id, id % 7 AS part FROM range(100)").groupBy("part").count().write.parquet(f"{folder}/rows")
        spark.read.parquet(f"{folder}/rows").collect()
        gateway = spark.sparkContext._gateway  # noqa: SLF001  # no public attribute has the Java process
        assert gateway is not None
        java = gateway.proc
    java.stdin.close()
    java.wait()
    part.rename(place)


if __name__ == "__main__":
    main()
