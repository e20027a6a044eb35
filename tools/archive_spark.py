"""Keeps the Java classes that Spark loads at its start, so that the many Javas of the tests find them ready.

    python tools/archive_spark.py FILE

Half of what a Java of Spark does for a test is loading and checking the same eight thousand classes. Java keeps them in
a file (class data sharing) when a first one ends; `tests/pipeline/conftest.py` has all others use it. A file that does
not fit, because Spark or Java is another, is ignored by Java.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

TUNED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""As the tests have it: an archive fits those only who collect garbage the same way."""


def main() -> None:
    """Run what all of them do: a job that reads and writes."""
    place = Path(sys.argv[1]).resolve()
    part = place.with_suffix(".part")
    part.unlink(missing_ok=True)
    os.environ["JDK_JAVA_OPTIONS"] = f"{TUNED} -XX:ArchiveClassesAtExit={part} -Xlog:cds=off -Xlog:cds+dynamic=off"
    from twinbus.pipeline.spark import session  # noqa: PLC0415  # Java starts with what is set above

    with session("archive", master="local[1]") as spark, tempfile.TemporaryDirectory() as folder:
        spark.sql("SELECT id, id % 7 AS part FROM range(100)").groupBy("part").count().write.parquet(f"{folder}/rows")
        spark.read.parquet(f"{folder}/rows").collect()
        gateway = spark.sparkContext._gateway  # noqa: SLF001  # nobody else knows when Java has ended
        assert gateway is not None
        java = gateway.proc
    java.stdin.close()
    java.wait()
    part.rename(place)


if __name__ == "__main__":
    main()
