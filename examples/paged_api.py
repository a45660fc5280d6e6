"""A source of your own: events of an HTTP API, page by page behind a cursor, from a server that
now and then fails.
"""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request

import onceward as ow


class EventsApi(ow.ResettableSource):
    schema = "id BIGINT NOT NULL, kind STRING NOT NULL, cents BIGINT"

    def __init__(self, url, page=100, tries=8, timeout_s=10.0):
        self.url, self.page, self.tries, self.timeout_s = url, page, tries, timeout_s

    def start(self):
        return None  # no cursor: from the first event

    def identity(self):  # the log has an id; another one numbers other events
        return self.get("/log")["id"]

    def read(self, position, limit):
        cursor = {} if position is None else {"after": position}
        answer = self.get("/events", limit=min(limit, self.page), **cursor)
        # At the end the server gives the cursor back that it was asked with: the position stays
        # where it is.
        return answer["events"], answer["next"]

    def get(self, path, **query):
        """What passes is tried again here: a query that fails costs a restart, a page only a
        moment.
        """
        where = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        for tried in range(self.tries - 1):
            try:
                return self.ask(where)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if (
                    isinstance(error, urllib.error.HTTPError)
                    and error.code < 500
                    and error.code != 429
                ):
                    raise
            time.sleep(0.05 * 2**tried)
        return self.ask(where)

    def ask(self, where):
        with urllib.request.urlopen(where, timeout=self.timeout_s) as answer:  # noqa: S310 — the program's own address
            return json.load(
                answer
            )  # a body that was cut raises: it is no JSON, or shorter than it said
