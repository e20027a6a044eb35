"""Builds twinbus with its hot files compiled by mypyc: the same files, checked by the same mypy, as C.

Everything else about the package is in pyproject.toml. TWINBUS_COMPILE=0 leaves all as Python; so does a machine
without mypy. A file belongs in the list if it is on the way of every message: compiled, a server handles half as many
messages again in the same time (docs/benchmarks/queue.md). What is a subclass of one in the list has to be in it, too.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup

COMPILED = {
    "amqp": (
        "connection",
        "decode",
        "delivery",
        "encode",
        "errors",
        "frames",
        "hot",
        "ledger",
        "link",
        "message",
        "outbox",
        "outline",
        "prelude",
        "receiver",
        "sasl",
        "sender",
        "session",
    ),
    "broker": (
        "agenda",
        "bodies",
        "entity",
        "fan_out",
        "fragment",
        "gathering",
        "hold",
        "holdings",
        "intake",
        "journal",
        "keys",
        "line",
        "locks",
        "outstanding",
        "publication",
        "queue",
        "receivable",
        "record",
        "sending",
        "sessions",
        "settlement",
        "subscription",
        "topic",
        "window",
        "work",
    ),
    "broker/partitioned": (
        "arriving",
        "checking",
        "entity",
        "ordering",
        "queue",
        "receivable",
        "sending",
        "spread",
        "topic",
    ),
    "broker/remote": (
        "browsing",
        "fragment",
        "journal",
        "line",
        "loan",
        "owner",
        "part",
        "settlement",
        "visitor",
    ),
    "client": ("deadlines", "link_end", "receiving_link", "sending_link"),
    "client/pairing": ("destination", "draining", "parcel", "rewriting"),
    "model": ("hashing",),
    "pipeline": ("properties", "row", "rows"),
    "server": ("incoming", "outgoing", "session_link", "socket_room", "spreading"),
    "server/metering": ("counter",),
    "store": ("changes",),
}

SPARED_WARNINGS = ["-Wno-misleading-indentation"]
"""For each `if`, gcc looks that up in the text: in one file of 300,000 lines that is half of the time it takes."""


def extensions() -> list[Extension]:
    """What is to be compiled; nothing where that is not wanted, not possible, or nothing is built yet."""
    if os.environ.get("TWINBUS_COMPILE") == "0" or {"dist_info", "egg_info"} & set(sys.argv):  # metadata alone
        return []
    try:
        from mypyc.build import mypycify  # noqa: PLC0415  # not there where only Python is wanted
    except ImportError:
        return []
    files = [f"src/twinbus/{package}/{name}.py" for package, names in COMPILED.items() for name in names]
    made: list[Extension] = mypycify(files, opt_level="3")
    for extension in made:
        extension.extra_compile_args = [*extension.extra_compile_args, *SPARED_WARNINGS]
    return made


setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count()}})
