"""Secrets in URLs: what a golden or a message repeats of a URL is what anybody may read.

A golden travels, and so does a message in a CI log. A URL can carry a user and password before its host, a signature
behind its `?`, a token behind its `#`: all three are replaced by `***` wherever a URL is stored or shown.
"""

from __future__ import annotations

import re

HIDDEN = "***"
# An authority ends at the first / ? #, and its last @ ends user and password (RFC 3986, 3.2).
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s'\"]*@")
_BEHIND = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s'\"?#]*[?#])[^\s'\"]+")


def without_secrets(text: str) -> str:
    """The text with what is secret in its URLs replaced by `***`.

    Args:
        text: a URL, or a sentence that may hold some.
    """
    if "://" not in text:
        return text
    return _BEHIND.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))
