"""Indexes of the fields in a message's header and properties, for reading single fields.

Parts 3.2.1 and 3.2.4 of the specification define these fields. `sections` declares all fields with their types. mypyc
inlines the constants of this module into compiled modules.
"""

from __future__ import annotations

from typing import Final

# --- header -----------------------------------------------------------------------------------------------------------

TTL: Final = 2
DELIVERY_COUNT: Final = 4

LARGEST_TTL_MS: Final = 2**32 - 1
"""Longest time to live that a header can hold. For a message that lives longer, the expiry and creation times in the
properties give the time to live."""

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
