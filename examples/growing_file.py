"""A source of your own: the lines of a file that grows, such as a log. Only lines that are
complete.
"""

import hashlib
import os

import onceward as ow

REMEMBERED = 256  # bytes before a position, by which it is known again


class GrowingFile(ow.ResettableSource):
    schema = "at BIGINT NOT NULL, line STRING NOT NULL"

    def __init__(self, path):
        self.path = str(path)

    def start(self):
        return {"at": 0, "before": digest(b"")}

    def identity(
        self,
    ):  # the file that another one was renamed to, or that was made anew, has another inode
        return f"inode {os.stat(self.path).st_ino}"

    def read(self, position, limit):
        rows, at = [], position["at"]
        with open(self.path, "rb") as file:
            before = self.before(file, at)
            if digest(before) != position["before"]:
                raise ow.errors.SourceReplaced(
                    f"{self.path} is not what was read before: it was truncated, or changed "
                    f"before byte {at}",
                    next_step="let whatever rotates it rename it and make a new one, and read "
                    "each file to its end "
                    "before the query is pointed at the next, with a checkpoint of its own",
                )
            while len(rows) < limit and (line := file.readline()).endswith(b"\n"):
                rows.append((at, line[:-1].decode()))
                at += len(line)
            return rows, {"at": at, "before": digest(self.before(file, at))}

    def before(self, file, at):
        """The bytes before ``at``, which is where the file stands then."""
        begin = max(0, at - REMEMBERED)
        file.seek(begin)
        return file.read(at - begin)


def digest(some):
    return hashlib.sha256(some).hexdigest()[:16]
