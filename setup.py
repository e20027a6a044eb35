"""Builds twinbus with its hot files compiled by mypyc, or as plain Python where they cannot be compiled.

Everything else about the package is in pyproject.toml. A file belongs in the list if every message passes through it:
compiled, a server handles half as many messages again in the same time (docs/benchmarks/queue.md). A subclass of a
class in the list has to be in the list, too.

TWINBUS_COMPILE decides what is built:

    unset   compiled if there are a C compiler and Python's headers; otherwise, or if compiling fails, plain Python
    0       plain Python
    1       compiled and fully optimised, for a wheel that many will use; the build fails where that is not possible

`twinbus --version` says which of the two is installed.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

COMPILED = {
    "amqp": (
        "connection",
        "delivery",
        "errors",
        "handshake",
        "link",
        "message",
        "receiver",
        "sasl",
        "send_queue",
        "sender",
        "session",
        "unsettled_deliveries",
    ),
    "amqp/codec": (
        "decode",
        "delivery_frames",
        "encode",
        "frames",
        "message_layout",
    ),
    "broker": (
        "commit_log",
        "message_record",
        "store_keys",
        "work_budget",
    ),
    "broker/entities": (
        "entity",
        "fan_out",
        "local_parts",
        "local_transaction",
        "part",
        "part_factory",
        "publication",
        "quota",
        "queue",
        "subscription",
        "topic",
        "transaction",
    ),
    "broker/fragment": (
        "dead_lettering",
        "dispatcher",
        "fragment",
        "in_flight",
        "locks",
        "message_browser",
        "message_table",
        "redelivery",
        "removal",
        "session_dispatcher",
        "session_lock",
        "settlement",
        "shared_bodies",
        "time_index",
        "window",
    ),
    "broker/intake": (
        "message_intake",
        "partitioner",
        "send_order",
    ),
    "broker/ports": (
        "callbacks",
        "exclusive_receiver",
        "fragment",
        "incoming_batch",
        "multi_fragment_receiver",
    ),
    "broker/remote": (
        "credit_reservation",
        "fragment",
        "message_browser",
        "part",
        "peer_client",
        "remote_consumer",
        "settlement",
    ),
    "client/amqp": (
        "link_endpoint",
        "receiver_link",
        "sender_link",
    ),
    "client/pairing/backlog": ("rewriting",),
    "client/pairing/syphon": (
        "backlog_consumer",
        "destination",
        "parked_message",
    ),
    "model": (
        "callbacks",
        "partition_key",
    ),
    "pipeline": (
        "column_buffers",
        "message_row",
        "properties",
    ),
    "server/amqp": (
        "incoming_link",
        "outgoing_link",
        "session_link",
        "socket_backpressure",
    ),
    "server/usage": ("counter",),
    "store": ("change_batch",),
}

WANTED: Final = os.environ.get("TWINBUS_COMPILE")
OPTIMISATION: Final = "3" if WANTED == "1" else "g"
"""gcc needs a third of the time for -Og that it needs for -O3, and an installation from source should take less than a
minute on two processors. Processor time per message with -O3, of that with -Og: send 0.96, receive 0.91, receive and
settle 0.96 (medians of 9 alternating rounds of `python -m bench.change`)."""
MYPY: Final = "mypy>=2.4"
MYPY_OPTIONS: Final = """\
[mypy]
mypy_path = src
explicit_package_bases = True
# Compiled files import no other package; the rest of twinbus does. An isolated build has none of these packages, and
# needs none: the C is the same. `make lint` checks types strictly, with all packages.
ignore_missing_imports = True
follow_imports = silent
"""
JOINED_PER_PROCESSOR: Final = 6
ARGUMENTS: Final = ["-w", "-fvisibility=hidden"]
"""Warnings about generated C help nobody, and looking for them takes an eighth of the time; hidden symbols are called
directly."""


class CannotCompile(Exception):
    """Compiling is not possible here. The message says why."""


def headers_folder() -> str:
    """Where Python.h is, or would be."""
    return sysconfig.get_path("include")


def check_compiler() -> None:
    """Compile and link an extension module of one line. CannotCompile says what is missing."""
    from distutils.ccompiler import new_compiler  # noqa: PLC0415  # setuptools brings it
    from distutils.sysconfig import customize_compiler  # noqa: PLC0415

    headers = headers_folder()
    if not (Path(headers) / "Python.h").is_file():
        raise CannotCompile(f"Python's headers are not installed: there is no {headers}/Python.h (Debian: python3-dev)")
    compiler = new_compiler()
    customize_compiler(compiler)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "tried.c"
        source.write_text("#include <Python.h>\nint tried(void) { return Py_IsInitialized(); }\n")
        try:
            objects = compiler.compile([str(source)], output_dir=folder, include_dirs=[headers])
            compiler.link_shared_object(objects, str(Path(folder) / "tried.so"))
        except (CCompilerError, BaseError, OSError) as error:
            raise CannotCompile(f"no working C compiler (Debian: gcc libc6-dev): {error}") from error


def extensions() -> list[Extension]:
    """Generate the C of the hot files. CannotCompile."""
    try:
        from mypyc.build import mypycify  # noqa: PLC0415  # missing where only Python is built
    except ImportError as error:
        raise CannotCompile(f"mypy is not installed: {error}") from error
    files = [f"src/twinbus/{package}/{name}.py" for package, names in COMPILED.items() for name in names]
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as options:
        options.write(MYPY_OPTIONS)
        options.flush()
        try:
            # One C file for each module, instead of one for all: every processor has some to compile.
            made: list[Extension] = mypycify(
                [f"--config-file={options.name}", *files], opt_level=OPTIMISATION, debug_level="0", multi_file=True
            )
        except SystemExit as error:
            raise CannotCompile("mypyc cannot compile the sources; its reasons are above") from error
    for extension in made:
        extension.extra_compile_args = [*extension.extra_compile_args, *ARGUMENTS]
    return made


def joined(sources: list[str], folder: Path) -> list[str]:
    """C files of similar size that include the sources: gcc reads the large common headers once for each of them.

    That saves a sixth of the time. There are several for each processor, so that none waits long for the last one.
    For a wheel every source stays by itself, the largest first: with -O3 gcc inlines less in a large file.
    """
    if WANTED == "1":
        return sorted(sources, key=lambda source: Path(source).stat().st_size, reverse=True)
    if len(sources) == 1:
        return sources
    groups: list[list[Path]] = [[] for _ in range(min(len(sources), JOINED_PER_PROCESSOR * (os.cpu_count() or 1)))]
    sizes = [0] * len(groups)
    for source in sorted(map(Path, sources), key=lambda source: source.stat().st_size, reverse=True):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(source)
        sizes[smallest] += source.stat().st_size
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, group in enumerate(groups):
        file = folder / f"joined_{Path(sources[0]).stem}_{number}.c"
        file.write_text("".join(f'#include "{source.resolve()}"\n' for source in group))
        made.append(str(file))
    return made


class Build(build_ext):
    """Compiles the files of an extension side by side, and falls back to plain Python."""

    def build_extensions(self) -> None:
        """Compile all extensions, or none: modules of both kinds do not fit together."""
        one_after_the_other = self.compiler.compile
        folder = Path(self.build_temp)
        headers = self._precompiled(folder / "headers")

        def compile_files(sources: list[str], **options: Any) -> list[str]:  # noqa: ANN401  # handed on
            options["include_dirs"] = [*headers, *options.get("include_dirs", [])]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: one_after_the_other([source], **options), joined(sources, folder))
                return [name for names in made for name in names]

        self.compiler.compile = compile_files
        try:
            super().build_extensions()
        except (CCompilerError, BaseError, OSError) as error:
            fall_back(CannotCompile(f"the C compiler failed: {error}"))
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = self.distribution.ext_modules = []

    def _precompiled(self, folder: Path) -> list[str]:
        """Have gcc read Python's headers once, instead of for each of a hundred small files that load a module.

        Returns the folders to look for headers in first. A file or a compiler that cannot use what was made from
        Python.h there reads Python.h itself.
        """
        folder.mkdir(parents=True, exist_ok=True)
        header = folder / "Python.h"
        header.write_text(f'#include "{headers_folder()}/Python.h"\n')
        arguments = [*self.extensions[0].extra_compile_args, "-x", "c-header", str(header)]
        try:
            self.compiler.spawn([*self.compiler.compiler_so, *arguments, "-o", f"{header}.gch"])
        except (CCompilerError, BaseError, OSError, AttributeError):
            return []
        return [str(folder)]


def fall_back(reason: CannotCompile) -> None:
    """Say that plain Python is built, or fail if that is not wanted."""
    if WANTED == "1":
        sys.exit(f"twinbus cannot be compiled: {reason}")
    print(f"twinbus is built as plain Python, which is slower: {reason}", file=sys.stderr)  # noqa: T201


def main() -> None:
    """Build what is wanted, and possible."""
    made: list[Extension] = []
    needed: list[str] = []
    if WANTED != "0" and "sdist" not in sys.argv:
        try:
            check_compiler()
            needed = [MYPY]
            if not {"dist_info", "egg_info"} & set(sys.argv):  # metadata alone
                made = extensions()
        except CannotCompile as reason:
            fall_back(reason)
    setup(
        ext_modules=made,
        setup_requires=needed,  # setuptools' back end adds it to the isolated build's packages
        cmdclass={"build_ext": Build},
        options={"build_ext": {"parallel": os.cpu_count()}},
    )


main()
