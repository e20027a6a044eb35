"""Metering: the server counts what clients use, for bills and cost reports.

`counter` counts the operations of one client on one entity, `meter` holds all counters of a process, `writer` appends
the counts to the usage journal every minute, and `rollup` turns each hour into a Parquet file. `model.usage` defines
the rows.
"""
