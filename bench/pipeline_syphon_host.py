"""A program that runs the syphon on Spark, again and again: what bench/pipeline_syphon.py starts and measures.

    python -m bench.pipeline_syphon_host MASTER PRIMARY_NAME

It reads three connection strings, one a line: the primary's, the secondary's, and the one for the secondary's
management; starts Spark and says `ready`. For each further line it reads it drains the backlog queues and says how many
messages were moved.
"""

from __future__ import annotations

import asyncio
import sys

from twinbus.pipeline.spark import session
from twinbus.pipeline.syphon import SETTINGS, Pair, SparkSyphon, Wanted


def main(master: str, primary_name: str) -> None:
    """Until there are no more lines."""
    primary, secondary, management = [sys.stdin.readline().strip() for _ in range(3)]
    wanted = Wanted(pair=Pair.of(primary, secondary, management, name=primary_name), available_now=True)
    with session("bench of the syphon", master=master, settings=SETTINGS) as spark:
        print("ready", flush=True)
        for _ in sys.stdin:
            report = asyncio.run(SparkSyphon(spark, wanted).run())
            print(report.moved, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
