"""The syphon on Spark: brings parked messages back to the primary from as many machines as there are.

    with session("twinbus syphon", master=MASTER, settings=SETTINGS) as spark:
        report = asyncio.run(SparkSyphon(spark, Wanted(pair, available_now=True)).run())

Its tasks run the very pumps of the in-process syphon: an exclusive link for each backlog queue, by epoch, and a message
is completed only after the primary has accepted it. Owns: which task has which backlog queues, the line on which tasks
tell the driver what they move and hear when to end, and the report. How messages move is the client's affair.
"""

from twinbus.pipeline.syphon.assignment import Pair
from twinbus.pipeline.syphon.driver import MASTER, SETTINGS, SparkSyphon, Wanted
from twinbus.pipeline.syphon.report import Report
from twinbus.pipeline.syphon.round_monitor import Progress

__all__ = ["MASTER", "SETTINGS", "Pair", "Progress", "Report", "SparkSyphon", "Wanted"]
