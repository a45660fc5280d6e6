"""What goes wrong between a client and the server, in the model's words; client libraries have
their own for each.
"""

from __future__ import annotations


class Trouble(Exception):
    """What the server answers, or that it does not answer; ``kind`` is a word, ``text`` what is
    said.

    gone, refused, ended, idle, shut down; no table, there, unique, locked, cancelled, deadlock,
    failed, unknown, no room, full, read only.
    """

    def __init__(self, kind: str, text: str = "") -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text or kind
