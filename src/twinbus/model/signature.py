"""Shared access signature tokens, as created by clients and checked by servers.

    SharedAccessSignature sr=<resource URI>&sig=<signature>&se=<expiry>&skn=<key name>

Owns the string to sign and the format of tokens. `server.auth.sas` decides what a token permits.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote_plus


def make_token(uri: str, key_name: str, key: str, expires_s: int) -> str:
    """Return a token for `uri` and everything below it."""
    resource = quote_plus(uri)
    signature = quote_plus(sign(resource, str(expires_s), key))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={quote_plus(key_name)}"


def sign(resource: str, expiry: str, secret: str) -> str:
    """Return the signature for a resource and expiry. The secret looks like base64 but is used as text, not decoded."""
    return base64.b64encode(hmac.digest(secret.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)).decode()
