"""What may be shown or stored of a text: no secrets of URLs, nothing that a terminal obeys.

A golden travels, and so does a message in a CI log. A URL can carry a user and password before its host, a signature
behind its `?`, a token behind its `#`: all three are replaced by `***` wherever a URL is stored or shown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

HIDDEN = "***"
# An authority ends at the first / ? #, and its last @ ends user and password (RFC 3986, 3.2).
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s'\"]*@")
_BEHIND = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s'\"?#]*[?#])[^\s'\"]+")


def printable(text: str, encoding: str | None) -> str:
    """The text with no character that controls a terminal or that its encoding lacks; such are written as escapes."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")


def secrets_of(url: str) -> tuple[str, ...]:
    """What is secret in a URL, literally: libraries repeat parts of it in words of their own."""
    rest = url.partition("://")[2]
    user = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[0]
    behind = re.split(r"[?#]", rest, maxsplit=1)[1:]
    found = {user, *user.partition(":")[::2], *behind}
    return tuple(sorted((secret for secret in found if len(secret) > 1), key=len, reverse=True))


def without_secrets(text: str, secrets: Sequence[str] = ()) -> str:
    """The text with what is secret in its URLs replaced by `***`.

    Args:
        text: a URL, or a sentence that may hold some. secrets: hidden wherever they stand.
    """
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    if "://" not in text:
        return text
    return _BEHIND.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text))


def typed_command(*words: str, places: Sequence[str] = ()) -> str:
    """A command as it is typed again, without the secrets of URLs.

    Args:
        places: arguments that are no options, whatever they begin with.
    """
    return shlex.join(map(without_secrets, [*words, *(f"./{x}" if x.startswith("-") else x for x in places)]))
