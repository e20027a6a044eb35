"""The syphon on Spark: moves parked messages to the primary in tasks on several machines.

    with session("twinbus syphon", master=MASTER, settings=SETTINGS) as spark:
        report = asyncio.run(SparkSyphon(spark, Wanted(pair=pair, available_now=True)).run())

Tasks run the same pumps as the syphon of an application: each backlog queue has an exclusive receiver with an epoch,
and a message is completed only after the primary has accepted it. Owns the assignment of backlog queues to tasks, the
connection on which tasks report progress and learn when to stop, and the report. Knows nothing of how messages are
moved: the client moves messages.
"""

from twinbus.pipeline.syphon.assignment import Pair
from twinbus.pipeline.syphon.driver import MASTER, SETTINGS, SparkSyphon, Wanted
from twinbus.pipeline.syphon.report import Report
from twinbus.pipeline.syphon.round_monitor import Progress

__all__ = ["MASTER", "SETTINGS", "Pair", "Progress", "Report", "SparkSyphon", "Wanted"]
