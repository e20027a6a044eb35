"""Shared access signatures, as they are written: by a client that has a key, and by a server that compares.

    SharedAccessSignature sr=<for what>&sig=<signature>&se=<until when>&skn=<name of the key>

Owns: what is signed, and how the text looks. What a token is good for is `server.sas`'s affair.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote_plus


def make_token(uri: str, key_name: str, key: str, expires_s: int) -> str:
    """A token for `uri` and all below it."""
    resource = quote_plus(uri)
    signature = quote_plus(sign(resource, str(expires_s), key))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={quote_plus(key_name)}"


def sign(resource: str, expiry: str, secret: str) -> str:
    """The key is the bytes of its text: it looks like base64, and is not decoded."""
    return base64.b64encode(hmac.digest(secret.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)).decode()
