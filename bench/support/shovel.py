"""RabbitMQ's shovel under measurement: the time it takes to move messages, for comparison with the syphon.

    moved = Shovel(folder).move(QueueLayout(sources=10, destinations=1), count=100_000, size=1024)

Owns the queues and the dynamic shovels, which `rabbitmqctl eval` creates, fills, watches and removes inside RabbitMQ.
This favours RabbitMQ: messages are published in its own protocol, so a shovel need not convert them; shovels use direct
connections without a socket; and RabbitMQ measures the time itself. A shovel confirms like the syphon: a message leaves
its queue once the destination has it on disk.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.support.server import HERE

if TYPE_CHECKING:
    from pathlib import Path

RABBITMQ4: Final = HERE / "peer" / "rabbitmq4"
PREFETCH: Final = 1_000
TIMEOUT_S: Final = 300.0
POLL_INTERVAL_MS: Final = 5
_COMMON: Final = """
Resource = fun(Kind, Name) -> rabbit_misc:r(<<"/">>, Kind, Name) end,
Named = fun(Word, Total) -> [iolist_to_binary(["bench-", Word, integer_to_list(N)]) || N <- lists:seq(1, Total)] end,
Sources = Named("source-", %(sources)d), Destinations = Named("destination-", %(destinations)d),
Messages = fun(Names) -> lists:sum([begin
    {ok, Queue} = rabbit_amqqueue:lookup(Resource(queue, Name)),
    [{messages, Found}] = rabbit_amqqueue:info(Queue, [messages]), Found end || Name <- Names]) end,
Wait = fun Again(Test) -> case Test() of
    true -> erlang:monotonic_time(microsecond);
    false -> timer:sleep(%(look_every_ms)d), Again(Test) end end,
"""
_FILL: Final = """
lists:foreach(fun(Name) ->
    rabbit_amqqueue:declare(Resource(queue, Name), true, false,
        [{<<"x-queue-type">>, longstr, <<"classic">>}], none, <<"bench">>) end, Sources ++ Destinations),
Exchange = Resource(exchange, <<>>),
Persistent = setelement(5, list_to_tuple(['P_basic' | lists:duplicate(14, undefined)]), 2),
lists:foreach(fun(Name) -> lists:foreach(fun(_) ->
    Content = rabbit_basic:build_content(Persistent, crypto:strong_rand_bytes(%(size)d)),
    {ok, Message} = mc_amqpl:message(Exchange, Name, Content),
    ok = rabbit_queue_type:publish_at_most_once(Exchange, Message) end,
    lists:seq(1, %(count)d div %(sources)d)) end, Sources),
Wait(fun() -> Messages(Sources) == %(count)d end),
Messages(Sources).
"""
_MOVE: Final = """
Started = erlang:monotonic_time(microsecond),
Pairs = [{Source, lists:nth(1 + N rem %(destinations)d, Destinations)} || {N, Source} <- lists:enumerate(0, Sources)],
lists:foreach(fun({Source, Destination}) -> ok = rabbit_runtime_parameters:set(<<"/">>, <<"shovel">>, Source, [
    {<<"src-protocol">>, <<"amqp091">>}, {<<"src-uri">>, <<"amqp://">>}, {<<"src-queue">>, Source},
    {<<"src-prefetch-count">>, %(prefetch)d}, {<<"ack-mode">>, <<"on-confirm">>},
    {<<"dest-protocol">>, <<"amqp091">>}, {<<"dest-uri">>, <<"amqp://">>}, {<<"dest-queue">>, Destination}], none)
    end, Pairs),
First = Wait(fun() -> Messages(Destinations) > 0 end),
Last = Wait(fun() -> Messages(Destinations) >= %(count)d andalso Messages(Sources) == 0 end),
Total = Messages(Destinations),
{Total, Last - First, Last - Started}.
"""
_REMOVE: Final = """
lists:foreach(fun(Name) -> rabbit_runtime_parameters:clear(<<"/">>, <<"shovel">>, Name, <<"bench">>) end, Sources),
lists:foreach(fun(Name) -> case rabbit_amqqueue:lookup(Resource(queue, Name)) of
    {ok, Queue} -> rabbit_amqqueue:delete(Queue, false, false, <<"bench">>);
    _ -> none end end, Sources ++ Destinations),
{Messages, Wait, removed}.
"""
_FOUND: Final = re.compile(r"\{(\d+),(\d+),(\d+)\}")


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """Number of source queues, each with its own shovel, and of destination queues."""

    sources: int
    destinations: int

    def __str__(self) -> str:
        return f"{self.sources} {_plural('queue', self.sources)} to {self.destinations}"


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of one move of all messages."""

    count: int
    moving_s: float
    """Seconds from the arrival of the first message until all have arrived and left their sources."""
    whole_s: float
    """Seconds, including the start."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.moving_s

    @property
    def whole_rate(self) -> float:
        """Messages per second, including the start."""
        return self.count / self.whole_s


class Shovel:
    """The shovel plug-in of a running RabbitMQ."""

    def __init__(self, folder: Path) -> None:
        """Create the client. `folder` is the folder of peer/rabbitmq4."""
        self._folder = folder

    def move(self, arrangement: QueueLayout, count: int, size: int) -> Moved:
        """Fill the sources, move all messages, and remove the queues."""
        names: dict[str, int] = {
            "sources": arrangement.sources,
            "destinations": arrangement.destinations,
            "count": count,
            "size": size,
            "prefetch": PREFETCH,
            "look_every_ms": POLL_INTERVAL_MS,
        }
        self._evaluate((_COMMON + _REMOVE) % names)
        try:
            self._evaluate((_COMMON + _FILL) % names)
            found = _FOUND.search(self._evaluate((_COMMON + _MOVE) % names))
        finally:
            self._evaluate((_COMMON + _REMOVE) % names)
        assert found is not None
        if int(found[1]) != count:
            sys.exit(f"the shovel moved {found[1]} messages, not {count}")
        return Moved(count, int(found[2]) / 1e6, int(found[3]) / 1e6)

    def _evaluate(self, expression: str) -> str:
        words = [str(RABBITMQ4), "ctl", str(self._folder), "eval", " ".join(expression.split())]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            sys.exit(f"rabbitmqctl eval failed:\n{done.stdout}{done.stderr}")
        return done.stdout


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
