"""Metering: what clients ask of a namespace is counted, and kept for whoever wants to know what it costs.

`counter` is where links count, `meter` has all counters of a process, `clerk` writes down each minute what was counted
(`journal`), and `roll` makes a Parquet file of each hour. What rows mean is in `model.usage`.
"""
