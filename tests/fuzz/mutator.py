"""Creates fuzz inputs: recorded conversations with random changes, cut into reads.

There are two kinds of changes. Structural changes keep frames well formed (a field gets another value; frames are
removed, repeated, swapped, or taken from another conversation) and so reach deep code; byte changes break frames. All
changes are drawn from one generator, so the number of an input is enough to create it again.

Owns: the inputs. Must not know the engine.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.fuzz.corpus import FRAME_HEADER, HEADER_SIZE, Conversation, Frame, conversations, messages

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    Parts = list[bytes | Frame]

# --- replacement values -----------------------------------------------------------------------------------------------

NUMBERS: Final = (0, 1, 2, 3, 127, 128, 255, 256, 511, 512, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
UINTS: Final = (
    b"\x43",
    *(b"\x52" + bytes((number,)) for number in NUMBERS if number < 256),
    *(b"\x70" + struct.pack(">I", number) for number in NUMBERS),
)
BOOLEANS: Final = (b"\x41", b"\x42", b"\x56\x00", b"\x56\x01", b"\x56\x02")
TEXTS: Final = (
    b"\xa1\x00",
    b"\xa1\x02s0",
    b"\xa1\x02r0",
    b"\xa1\x01\xff",
    b"\xa3\x02s0",
    b"\xa3\x02\xc3\xa9",
    b"\xb1\x00\x00\x00\x02s0",
    b"\xa1\xc8" + b"n" * 200,
    b"\xb1\x00\x00\x02\x58" + b"n" * 600,
    b"\xb1\xff\xff\xff\xff",
)
BINARIES: Final = (b"\xa0\x00", b"\xa0\x04\x00\x00\x00\x01", b"\xa0\x20" + b"t" * 32, b"\xa0\x21" + b"t" * 33)
STATES: Final = (
    b"\x00\x53\x24\x45",
    b"\x00\x53\x24\xc0\x01\x00",
    b"\x00\x53\x26\x45",
    b"\x00\x53\x25\x45",
    b"\x00\x53\x25\xc0\x0a\x01\x00\x53\x1d\xc0\x04\x01\xa3\x01x",
    b"\x00\x53\x27\xc0\x0b\x03\x41\x42\xc1\x06\x02\xa3\x01k\x55\x01",
    # String keys that are not ASCII: accepted, but they cannot be encoded as symbols.
    b"\x00\x53\x27\xc0\x0c\x03\x41\x42\xc1\x07\x02\xa1\x02\xc3\xa9\x55\x01",
    b"\x00\x53\x23\xc0\x03\x02\x43\x44",
    b"\x00\x53\x33\xc0\x07\x01\xa0\x04\x00\x00\x00\x01",
    b"\x00\x53\x34\xc0\x0b\x02\xa0\x04\x00\x00\x00\x01\x00\x53\x24\x45",
    b"\x00\x53\x34\xd0\x00\x00\x02\x5d\x00\x00\x00\x01\xb0\x00\x00\x02\x54" + b"t" * 596,
    b"\x00\xa3\x12amqp:accepted:list\x45",
    b"\x00\x53\x28\x45",
    b"\x00\x53\x29\xc0\x04\x01\xa1\x01q",
    b"\x00\x53\x28\xc0\x12\x08\x40\x40\x40\x40\x40\x40\x40\xc1\x08\x02\xa1\x02\xc3\xa9\xa1\x01v",
    b"\x00\x53\x30\x45",
    b"\x00\x53\x1d\xc0\x0b\x03\xa3\x04oops\xa1\x00\xc1\x01\x00",
)
OTHER_VALUES: Final = (
    b"\x40",
    b"\x44",
    b"\x45",
    b"\x50\x00",
    b"\x50\x01",
    b"\x50\xff",
    b"\x60\x00\x00",
    b"\x60\x00\x01",
    b"\x60\xff\xff",
    b"\x80" + b"\xff" * 8,
    b"\x80" + b"\x00" * 8,
    b"\x80\x00\x00\x00\x01\x00\x00\x00\x00",
    b"\x53\x10",
    b"\x81" + b"\x80" + b"\x00" * 7,
    b"\x72\x7f\xc0\x00\x00",
    b"\x82\x7f\xf8" + b"\x00" * 6,
    b"\x73\x00\x00\xd8\x00",
    b"\x73\x00\x11\x00\x00",
    b"\x74" + b"\xff" * 4,
    b"\x94\x5f\xfe" + b"\x99" * 14,
    b"\x98" + bytes(range(16)),
    b"\xc0\x01\x00",
    b"\xc1\x01\x00",
    b"\xc1\x07\x04\xa3\x01k\x40\x43\x40",
    b"\xc1\x06\x04\x43\x40\x43\x40",
    b"\xc1\x06\x04\x41\x40\x54\x01\x40",
    b"\xc1\x04\x02\x45\x45",
    b"\xc1\x03\x01\x40",
    b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
    b"\xe0\x02\x00\xa3",
    b"\xe0\x06\x02\xa3\x01a\x01b",
    # Arrays with zero-width elements: only the count says how many there are.
    b"\xe0\x02\xff\x40",
    b"\xf0\x00\x00\x00\x05\x00\x00\xf0\x00\x40",
    b"\xf0\x00\x00\x00\x05\x00\x00\xf0\x00\x45",
    b"\xc1\x0e\x02\xa3\x01k\xf0\x00\x00\x00\x05\x00\x00\xf0\x00\x45",
    b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x41",
    b"\x00" * 40 + b"\x40" * 41,
    b"".join(b"\xc0" + bytes((size, 1)) for size in range(121, 1, -3)) + b"\x45",
    b"\x00\x53\x70\x45",
    b"\x0f",
    b"",
)
VALUES: Final = UINTS + BOOLEANS + TEXTS + BINARIES + STATES + OTHER_VALUES
_SIMILAR_VALUES: Final[tuple[tuple[bytes, tuple[bytes, ...]], ...]] = (
    (b"\x43\x52\x70", UINTS),
    (b"\x41\x42\x56", BOOLEANS),
    (b"\xa1\xb1\xa3\xb3", TEXTS),
    (b"\xa0\xb0", BINARIES),
    (b"\x00", STATES),
)
SIMILAR_VALUES: Final = {code: values for codes, values in _SIMILAR_VALUES for code in codes}
"""Replacement values of the same type, by constructor."""

HEADERS: Final = (b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01")
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
CODES: Final = (*range(0x10, 0x19), *range(0x40, 0x45), 0x24, 0x28, 0x70, 0x00, 0xFF)
LINK_CODES: Final = frozenset(range(0x12, 0x17))
MAX_FRAMES: Final = 24


@dataclass(frozen=True, slots=True)
class Input:
    """Input of one target, with everything needed to repeat the run."""

    target: str
    """Name in `campaign.TARGETS`."""
    reads: tuple[bytes, ...]
    random_seed: int
    """Seed of the random program's decisions."""
    conversation: str = ""
    """Recording that the input is based on; a client attaches the links that the recording answers."""


class Mutator:
    """Generator of inputs. Seed `rng`, then call `make`."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        recorded = conversations()
        self.conversations = {
            "server": [conversation for conversation in recorded if conversation.from_client],
            "client": [conversation for conversation in recorded if not conversation.from_client],
        }
        self.frames = [part for conversation in recorded for part in conversation.frames if isinstance(part, Frame)]
        self.link_frames = [frame for frame in self.frames if frame.code in LINK_CODES and not frame.frame_type]
        self.deliveries = [frame for frame in self.link_frames if frame.code in {0x14, 0x15}]
        self.messages = messages()
        self.values = (*VALUES, *(frame.recorded[HEADER_SIZE:] for frame in self.frames if frame.fields))

    def random_below(self, count: int) -> int:
        """Return a random number from 0 to `count` - 1."""
        return int(self.rng.random() * count)

    def make(self, target: str) -> Input:
        """Create an input for a target."""
        if target == "value":
            return self.value()
        if target == "message":
            return self.message()
        return self.transfer() if target == "transfer" else self.conversation(target)

    def conversation(self, target: str) -> Input:
        """Create a conversation for our server or client."""
        recorded = self.conversations[target][self.random_below(len(self.conversations[target]))]
        parts = self.changed_parts(recorded)
        data = b"".join([part if isinstance(part, bytes) else part.recorded or part.encode() for part in parts])
        if self.rng.random() < 0.15:
            data = self.changed_bytes(data)
        reads = self.cut(data, parts)
        if target == "client" and self.rng.random() < 0.9:
            # A server answers our client's begin after its own open, not in the same read.
            reads = tuple(_split_at(reads, recorded.opening))
        return Input(target, reads, self.rng.getrandbits(32), recorded.name)

    def value(self) -> Input:
        """Create an encoded value, or several."""
        data = self.values[self.random_below(len(self.values))]
        for _ in range(self.random_below(3)):
            other = self.values[self.random_below(len(self.values))]
            at = self.random_below(len(data) + 1)
            data = data[:at] + other + data[at + self.random_below(2) * len(other) :]
        return Input("value", (self.changed_bytes(data),), self.rng.getrandbits(32))

    def message(self) -> Input:
        """Create an encoded message."""
        data = self.messages[self.random_below(len(self.messages))]
        if self.rng.random() < 0.3:
            value = VALUES[self.random_below(len(VALUES))]
            at = self.random_below(len(data) + 1)
            data = data[:at] + value + data[at + self.random_below(2) * len(value) :]
        if self.rng.random() < 0.6:
            data = self.changed_bytes(data)
        return Input("message", (data,), self.rng.getrandbits(32))

    def transfer(self) -> Input:
        """Create the body of a transfer or a disposition."""
        parts: Parts = [self.deliveries[self.random_below(len(self.deliveries))]]
        if self.rng.random() < 0.7:
            self.change_field(parts, 0)
        (part,) = parts
        data = part if isinstance(part, bytes) else part.recorded or part.encode()
        if self.rng.random() < 0.5:
            data = self.changed_bytes(data)
        return Input("transfer", (data[HEADER_SIZE:],), self.rng.getrandbits(32))

    # --- structure ----------------------------------------------------------------------------------------------------

    def changed_parts(self, recorded: Conversation) -> Parts:
        parts: Parts = list(recorded.frames)
        if len(parts) > MAX_FRAMES or self.rng.random() < 0.3:
            del parts[recorded.body + 1 + self.random_below(MAX_FRAMES) :]
        for _ in range(1 + self.random_below(self.random_below(6) + 1)):
            # The part before the first begin is short and soon explored: most changes are made after it.
            start = recorded.body if len(parts) > recorded.body and self.rng.random() < 0.9 else 0
            change = MUTATIONS[self.random_below(len(MUTATIONS))]
            change(self, parts, start + self.random_below(len(parts) - start))
            if not parts:
                break
        return parts

    def change_field(self, parts: Parts, at: int) -> None:
        frame = self.changeable(parts, at)
        if frame is None or not frame.fields:
            return
        index = self.random_below(len(frame.fields))
        old = frame.fields[index]
        candidates = SIMILAR_VALUES.get(old[0], VALUES) if old and self.rng.random() < 0.7 else VALUES
        frame.fields[index] = candidates[self.random_below(len(candidates))]

    def change_number(self, parts: Parts, at: int) -> None:
        frame = self.changeable(parts, at)
        if frame is None:
            return
        numbers = [index for index, field in enumerate(frame.fields) if field[:1] in {b"\x43", b"\x52", b"\x70"}]
        if numbers:
            index = numbers[self.random_below(len(numbers))]
            number = int.from_bytes(frame.fields[index][1:], "big") + self.random_below(5) - 2
            frame.fields[index] = b"\x70" + struct.pack(">I", number & 0xFFFFFFFF)

    def change_shape(self, parts: Parts, at: int) -> None:
        """Remove fields, or add one."""
        frame = self.changeable(parts, at)
        if frame is None or not frame.fields:
            return
        if self.rng.random() < 0.7:
            del frame.fields[self.random_below(len(frame.fields)) :]
        else:
            frame.fields.insert(self.random_below(len(frame.fields) + 1), VALUES[self.random_below(len(VALUES))])

    def change_frame(self, parts: Parts, at: int) -> None:
        """Change the channel, the descriptor or the frame type."""
        frame = self.changeable(parts, at)
        if frame is None:
            return
        choice = self.random_below(8)
        if choice < 4:
            frame.channel = self.random_below(3) if choice else NUMBERS[self.random_below(len(NUMBERS))] & 0xFFFF
        elif choice < 7:
            frame.descriptor = b"\x00\x53" + bytes((CODES[self.random_below(len(CODES))],))
        else:
            frame.frame_type = self.random_below(3)

    def change_payload(self, parts: Parts, at: int) -> None:
        frame = self.changeable(parts, at)
        if frame is None:
            return
        choice = self.random_below(3)
        if choice == 0:
            frame.payload = frame.payload[: self.random_below(len(frame.payload) + 1)]
        elif choice == 1:
            frame.payload += bytes(NUMBERS[self.random_below(10)])
        else:
            frame.payload = self.changed_bytes(frame.payload)

    def remove_frame(self, parts: Parts, at: int) -> None:
        del parts[at]

    def repeat_frame(self, parts: Parts, at: int) -> None:
        parts.insert(at + self.random_below(len(parts) - at), parts[at])

    def repeat_frame_often(self, parts: Parts, at: int) -> None:
        parts[at:at] = [parts[at]] * (2 + self.random_below(12))

    def swap(self, parts: Parts, at: int) -> None:
        other = at + self.random_below(len(parts) - at)
        parts[at], parts[other] = parts[other], parts[at]

    def splice(self, parts: Parts, at: int) -> None:
        """Insert a frame of any conversation."""
        frames = self.frames if self.rng.random() < 0.1 else self.link_frames
        parts.insert(at, frames[self.random_below(len(frames))])

    def splice_run(self, parts: Parts, at: int) -> None:
        start = self.random_below(len(self.link_frames))
        parts[at:at] = self.link_frames[start : start + 2 + self.random_below(4)]

    def insert_frame(self, parts: Parts, at: int) -> None:
        """Insert a heartbeat or a protocol header."""
        parts.insert(at, HEARTBEAT if self.rng.random() < 0.6 else HEADERS[self.random_below(len(HEADERS))])

    def break_frame(self, parts: Parts, at: int) -> None:
        """Change the frame size, the data offset, or some bytes."""
        part = parts[at]
        data = part if isinstance(part, bytes) else part.recorded or part.encode()
        choice = self.random_below(4)
        if choice == 0 and len(data) >= HEADER_SIZE:
            size, offset, frame_type, channel = FRAME_HEADER.unpack_from(data)
            size = (
                NUMBERS[self.random_below(len(NUMBERS))] if self.rng.random() < 0.4 else size + self.random_below(9) - 4
            )
            parts[at] = FRAME_HEADER.pack(size & 0xFFFFFFFF, offset, frame_type, channel) + data[HEADER_SIZE:]
        elif choice == 1 and len(data) >= HEADER_SIZE:
            size, _, frame_type, channel = FRAME_HEADER.unpack_from(data)
            offset = self.random_below(8)
            extended = bytes(max(0, offset * 4 - HEADER_SIZE))
            size = (size + len(extended)) & 0xFFFFFFFF
            parts[at] = FRAME_HEADER.pack(size, offset, frame_type, channel) + extended + data[HEADER_SIZE:]
        else:
            parts[at] = self.changed_bytes(data)

    def changeable(self, parts: Parts, at: int) -> Frame | None:
        """Return a copy of the frame at `at` to change, or None if the frame is already broken."""
        part = parts[at]
        if isinstance(part, bytes):
            return None
        frame = parts[at] = part.copy()
        frame.recorded = b""
        return frame

    # --- bytes --------------------------------------------------------------------------------------------------------

    def changed_bytes(self, data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(1 + self.random_below(3)):
            at = self.random_below(len(out) + 1)
            choice = self.random_below(7)
            if choice == 0 and at < len(out):
                out[at] ^= 1 << self.random_below(8)
            elif choice == 1 and at < len(out):
                out[at] = self.random_below(256)
            elif choice == 2:
                del out[at : at + 1 + self.random_below(8)]
            elif choice == 3:
                out[at:at] = VALUES[self.random_below(len(VALUES))]
            elif choice == 4:
                del out[at:]
            elif choice == 5:
                out[at : at + 4] = struct.pack(">I", NUMBERS[self.random_below(len(NUMBERS))])
            else:
                start = self.random_below(len(out) + 1)
                out[at:at] = out[start : start + 1 + self.random_below(16)]
        return bytes(out)

    # --- reads --------------------------------------------------------------------------------------------------------

    def cut(self, data: bytes, parts: Parts) -> tuple[bytes, ...]:
        """Cut the bytes into one read, a few reads, one read for each frame, or single bytes."""
        choice = self.rng.random()
        if choice < 0.3:
            return (data,)
        if choice < 0.5:
            cuts = sorted({0, *(self.random_below(len(data) + 1) for _ in range(1 + self.random_below(4))), len(data)})
        elif choice < 0.97 or len(data) > 400:
            cuts = [0]
            for part in parts:
                cuts.append(cuts[-1] + len(part if isinstance(part, bytes) else part.recorded or part.encode()))
            cuts.append(max(cuts[-1], len(data)))
        else:
            cuts = list(range(len(data) + 1))
        return tuple(data[start:end] for start, end in itertools.pairwise(cuts))


def _split_at(reads: tuple[bytes, ...], at: int) -> Iterator[bytes]:
    for read in reads:
        if 0 < at < len(read):
            yield read[:at]
            yield read[at:]
        else:
            yield read
        at -= len(read)


MUTATIONS: Final[tuple[Callable[[Mutator, Parts, int], None], ...]] = (
    *[Mutator.change_field] * 8,
    *[Mutator.change_number] * 4,
    *[Mutator.change_shape] * 2,
    *[Mutator.change_frame] * 2,
    *[Mutator.change_payload] * 2,
    *[Mutator.remove_frame] * 2,
    *[Mutator.repeat_frame] * 2,
    Mutator.repeat_frame_often,
    *[Mutator.swap] * 2,
    *[Mutator.splice] * 3,
    *[Mutator.splice_run] * 2,
    Mutator.insert_frame,
    *[Mutator.break_frame] * 2,
)
