"""What servers counted, as a DataFrame: a row for each minute, process, entity and client.

    usage = read_usage(spark, ["data/contoso", "data/contoso-backup"])

Owns: that the hours which are Parquet files already and those which are still journals come as one, each minute once.
What the columns mean is in `twinbus.model.usage`; what they cost, in `twinbus.pipeline.costs`.
"""

from twinbus.pipeline.usage.reading import read_usage

__all__ = ["read_usage"]
