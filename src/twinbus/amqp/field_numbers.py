"""Numbers of the fields of a message's header and properties (parts 3.2.1 and 3.2.4), for reading a field by itself.

`sections` has all fields, with their types. Compiled files get the numbers from here as if they were written there.
"""

from __future__ import annotations

from typing import Final

# --- header -----------------------------------------------------------------------------------------------------------

TTL: Final = 2
DELIVERY_COUNT: Final = 4

LARGEST_TTL_MS: Final = 2**32 - 1
"""The longest time to live that a header can hold. The properties of a message that lives longer have its expiry and
creation times."""

# --- properties -------------------------------------------------------------------------------------------------------

MESSAGE_ID: Final = 0
TO: Final = 2
SUBJECT: Final = 3
REPLY_TO: Final = 4
CORRELATION_ID: Final = 5
CONTENT_TYPE: Final = 6
ABSOLUTE_EXPIRY_TIME: Final = 8
CREATION_TIME: Final = 9
GROUP_ID: Final = 10
REPLY_TO_GROUP_ID: Final = 12
