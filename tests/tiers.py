"""Which `make` target runs a test, computed from what the test stands on, so that no mark can be
forgotten.

``tests/conftest.py`` asks :func:`tier_of` about every collected test and marks it with the answer;
``-m fast`` and the like then choose. A test is in the cheapest tier that has what it needs, and
each tier has one `make` target:

* ``fast`` (``make test-fast``): no broker and no JVM. :mod:`support.no_java` holds it to that.
* ``main`` (``make test`` = ``fast`` + ``main``): the worker's one broker and its one Spark
  session. Of a file on Spark only the first test is here, and of a suite of many cases the first
  two, and their first case: write what tells most at the top. And a minute of the simulation
  (``lengthy("main")``).
* ``ci`` (``make test-ci`` = all but ``chaos``): the others, and jobs in processes of their own; of
  each test on Spark the first case, so put that first which tells most, but of suites all. And
  what takes long, with servers or without (``lengthy("ci")``).
* ``chaos`` (``make chaos``): what needs a broker of the old version, or a cluster beside the
  shared one, or minutes, or finds again what others find (``lengthy("chaos")``); whole pipelines
  in ``tests/chaos``, but for a killed driver; the other cases of tests on Spark; and of a suite
  that is run once more, over another server, ledger or layout, all but the first tests.

What a test stands on is read off its fixtures, its parameters, and the code that it and its
fixtures reach in this folder. Nothing is started for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from onceward_testing import (
    LocalKafka,
    LocalMySQL,
    LocalOpenSearch,
    LocalPostgres,
    LocalRedis,
    LocalRegistry,
)

TIERS = ("fast", "main", "ci", "chaos")
TESTS = Path(__file__).resolve().parent
PURE = ("unit", "tidy", "simulation")
"""Folders in which a ``LocalKafka`` may be made, to look at it, but never started: :mod:`support.no_java`
sees to it.
"""

OWN_DRIVERS = ("chaos", "bench")
"""Folders whose tests run whole pipelines in processes of their own. In ``spark`` those do that
ask for no session.
"""

SHARED_BROKER, SHARED_SPARK, SHARED_DATABASES = (
    "kafka",
    "spark",
    (
        "postgres",
        "mysql",
        "newer_mysql",
        "mariadb",
        "binlog_mysql",
        "binlog_mariadb",
        "opensearch",
        "registry",
    ),
)
"""The fixtures of ``tests/conftest.py`` that each worker has once."""

_SUITES = ("contract", "database", "docs")
"""Folders of suites with many cases, each of which is another thing: a step, a type, a page."""

_EARLY = {"contract": 2, "database": 2}
"""How many tests of a file on Spark, or of a suite, are the newcomer's, by folder; of others
one.
"""

_CLUSTERS = (LocalKafka, LocalOpenSearch, LocalRegistry)
_DATABASES = (LocalMySQL, LocalPostgres, LocalRedis)
"""Servers that are no JVM: a test that starts one stands on no less than one that shares it."""

_PROGRAM_TEXTS = ("LocalKafka(", "local_kafka.")
"""A cluster that is started by the text of a program, which a test runs in a process of its own,
is named so there.
"""


@dataclass(frozen=True)
class Facts:
    """What one test stands on."""

    broker: bool = False
    spark: bool = False
    old_broker: bool = False
    """Needs a broker of another version than the shared one."""
    own_cluster: bool = False
    """It, or a fixture of it, starts a cluster beside the shared one, or another server that is a
    JVM.
    """
    slow: bool = False
    """Marked as one that takes minutes, which cannot be read off it; or of a folder of such
    (:data:`OWN_DRIVERS`), unless it shows a killed driver.
    """
    lengthy: str = ""
    """Marked as one that takes longer than what it stands on says: the cheapest tier that has room
    for it.
    """
    once_more: bool = False
    """Marked as one of a suite that other tests run already, over something else: of it the first
    are ``ci``'s.
    """
    first_case: bool = True
    """The first of the cases of its function, or the only one."""
    early: bool = True
    """Among the first of its file (:data:`_EARLY`)."""
    own_driver: bool = False
    """Stands on Spark and not on the shared session: it runs pipelines in processes, each with a
    Spark of its own.
    """
    suite: bool = False
    """One of a suite with many cases, of which it shows little that the others do not."""
    driver_killed: bool = False
    """Shows a fault that begins with a dead driver, which there is a real ``kill -9``."""


_Sign = Callable[[CodeType, dict[str, Any]], bool]

Collected = dict[str, tuple[list[str], list[str]]]
"""Tests by their node ids: the tiers that each is marked with, and its faults."""

COLLECTED = pytest.StashKey[Collected]()


def collected(items: list[pytest.Function]) -> Collected:
    """What there is to say of ``items``, marked as they are."""
    return {
        item.nodeid: (
            [tier for tier in TIERS if item.get_closest_marker(tier)],
            [fault for mark in item.iter_markers("fault") for fault in mark.args],
        )
        for item in items
    }


def tier_of(facts: Facts) -> str:
    """The cheapest tier that has what a test with these facts needs; one of :data:`TIERS`."""
    return max(_needed(facts), facts.lengthy or TIERS[0], key=TIERS.index)


def _needed(facts: Facts) -> str:
    if facts.slow or facts.old_broker or facts.own_cluster:
        return "chaos"
    if not facts.broker and not facts.spark:
        return "fast"
    if facts.once_more:
        return "ci" if facts.first_case and facts.early else "chaos"
    if facts.spark and not facts.suite and not facts.first_case:
        return "chaos"
    if facts.own_driver:
        return "main" if facts.driver_killed else "ci"
    return (
        "main" if not (facts.spark or facts.suite) or (facts.first_case and facts.early) else "ci"
    )


def facts_of(item: pytest.Function) -> Facts:
    """What a collected test stands on. Reads pytest's own tables of fixtures, which its lock
    pins.
    """
    folder = item.path.relative_to(TESTS).parts[0]
    functions = list(_functions_of(item))
    shared = {function.__name__ for function in functions if _is_shared(function)}
    own_cluster, own_database = (
        folder not in PURE and any(_comes_to(says_so, function) for function in functions)
        for says_so in (_names_a_cluster, _names_a_database)
    )
    faults = {fault for mark in item.iter_markers("fault") for fault in mark.args}
    broker = (
        folder in ("broker", "chaos")
        or own_cluster
        or own_database
        or bool({SHARED_BROKER, *SHARED_DATABASES} & shared)
    )
    spark = SHARED_SPARK in shared or (broker and folder in ("spark", *OWN_DRIVERS))
    killed = any(fault.startswith("driver-killed") for fault in faults)
    marked = item.get_closest_marker("slow") is not None
    return Facts(
        broker=broker,
        spark=spark,
        old_broker=any(_is_old_version(value) for value in _parameters(item).values()),
        own_cluster=own_cluster,
        slow=marked or (folder in OWN_DRIVERS and not killed),
        lengthy=_marked_tier(item),
        once_more=item.get_closest_marker("once_more") is not None,
        first_case=not any(_case_numbers(item)),
        early=_place_in_file(item) < _EARLY.get(folder, 1),
        suite=folder in _SUITES,
        own_driver=spark and SHARED_SPARK not in shared,
        driver_killed=killed,
    )


def _marked_tier(item: pytest.Function) -> str:
    mark = item.get_closest_marker("lengthy")
    return "" if mark is None else str(mark.args[0])


def _is_old_version(value: object) -> bool:
    return isinstance(value, str) and value.startswith("3.9")


def _parameters(item: pytest.Function) -> dict[str, object]:
    """The values of this case: its own parameters and those of its fixtures."""
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _case_numbers(item: pytest.Function) -> list[int]:
    """How manieth value of each parameter this case has, from 0."""
    return list(item.callspec.indices.values()) if hasattr(item, "callspec") else []


def _place_in_file(item: pytest.Function) -> int:
    """Count the tests above this one, in its module or, where it is a suite's that others inherit,
    in that.
    """
    mine = inspect.unwrap(item.function).__code__
    return sum(
        file == mine.co_filename and line < mine.co_firstlineno
        for file, line in _tests_in(item.cls or item.module)
    )


@functools.cache
def _tests_in(holder: type | ModuleType) -> list[tuple[str, int]]:
    """Return the file and the first line of each test of a module, or of a class and those that it
    inherits from.
    """
    names = dir(holder) if isinstance(holder, type) else vars(holder)
    tests = [inspect.unwrap(getattr(holder, name)) for name in names if name.startswith("test_")]
    return [
        (test.__code__.co_filename, test.__code__.co_firstlineno)
        for test in tests
        if inspect.isfunction(test)
    ]


# ── the fixtures of a test, also those that it asks for by a name that only its parameters or its code say


def _functions_of(item: pytest.Function) -> Iterator[FunctionType]:
    """The test's own function and those of its fixtures."""
    waiting, seen = [item.function], set[str]()
    wanted = [*item.fixturenames]
    while waiting:
        function = waiting.pop()
        yield function
        if "getfixturevalue" in inspect.unwrap(function).__code__.co_names:
            wanted += _texts(inspect.unwrap(function).__code__)
            wanted += [value for value in _parameters(item).values() if isinstance(value, str)]
        for name in set(wanted) - seen:
            seen.add(name)
            if found := _definition(name, item):
                waiting.append(found.func)
                wanted += found.argnames
    # `wanted` grows while it is read: what a fixture asks for is looked up in the next round.


def _definition(name: str, item: pytest.Function) -> Any:
    """The fixture that ``name`` means for this test: the last definition overrides. None if it is
    not one.
    """
    manager = item.session._fixturemanager
    found = item._fixtureinfo.name2fixturedefs.get(name) or manager.getfixturedefs(name, item)
    return found[-1] if found else None


# ── the code that a test can come to, as far as it is in this folder ──


@functools.cache
def _comes_to(says_so: _Sign, function: FunctionType) -> bool:
    """Whether ``says_so`` holds of any code that ``function`` can come to; the fixtures of shared
    servers do not count.
    """
    waiting, seen = [function], set[FunctionType]()
    while waiting:
        one = inspect.unwrap(waiting.pop())
        if one in seen or not _is_ours(one.__code__.co_filename) or _is_shared(one):
            continue
        seen.add(one)
        for code in _with_nested(one.__code__):
            if says_so(code, one.__globals__):
                return True
            waiting += [
                callee
                for name in code.co_names
                for callee in _callables(one.__globals__.get(name), code)
            ]
    return False


def _names_a_cluster(code: CodeType, names: dict[str, Any]) -> bool:
    values = [names.get(name) for name in code.co_names]
    texts = [*_texts(code), *(value for value in values if isinstance(value, str))]
    return any(kind in values for kind in _CLUSTERS) or any(
        sign in text for text in texts for sign in _PROGRAM_TEXTS
    )


def _names_a_database(code: CodeType, names: dict[str, Any]) -> bool:
    return any(names.get(name) in _DATABASES for name in code.co_names)


def _texts(code: CodeType) -> list[str]:
    return [constant for constant in code.co_consts if isinstance(constant, str)]


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


def _callables(named: object, code: CodeType) -> Iterator[FunctionType]:
    """The functions that a name leads to: itself, the methods of a class, or what is taken from a
    module.
    """
    if isinstance(named, FunctionType):
        yield named
    elif isinstance(named, type) and _is_ours(
        getattr(inspect.getmodule(named), "__file__", None) or ""
    ):
        yield from (method for method in vars(named).values() if isinstance(method, FunctionType))
    elif isinstance(named, ModuleType) and _is_ours(getattr(named, "__file__", None) or ""):
        for name in code.co_names:
            if not isinstance(inner := vars(named).get(name), ModuleType):
                yield from _callables(inner, code)


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(TESTS)


def _is_shared(function: FunctionType) -> bool:
    named = function.__name__ in (SHARED_BROKER, SHARED_SPARK, *SHARED_DATABASES)
    return named and function.__code__.co_filename == str(TESTS / "conftest.py")
