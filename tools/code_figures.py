#!/usr/bin/env python3
"""Measure the code base by Python's ``ast``: sizes, words, imports, each beside its goal.

``python tools/code_figures.py`` prints the figures of ``src/onceward`` without the annexes
(``onceward_verify``, ``onceward_testing``, and where they stood before); ``--all`` measures these,
too. ``--before REF`` reads a second tree from git and prints both. ``--list WHAT`` names the
offenders of one figure, ``file:line name``. ``--root`` measures another tree, the folder of any
package. Needs Python 3.10 and, for the table of a terminal, rich.

How the figures are meant:

* *Documented*: functions and methods without an underscore before their name or their class's,
  with a docstring of their own; overloads, setters, functions within functions and tests are left
  out. The next row also counts those that override a documented method of a base class, whose
  docstring ``help()`` shows.
* *Begins with a verb*: the docstring's first word is one of ``VERBS``, a list of imperatives. A
  word that is a noun as well (``AMBIGUOUS``: *count*, *name*, *open*) is taken for a verb unless
  the next word makes it a noun (*count of*). Properties are left out: a noun is right for them.
  ``Returns`` is no imperative.
* *Public*: what ``__all__`` of the package and its public modules names, with public methods; and
  of the annexes, the same of ``onceward_testing``.
* *Participles*: one-word names of functions, parameters, variables and attributes that are a
  participle of ``PARTICIPLES`` or end in *ed*, but for words that name a state (``STATES``:
  *closed*, *committed*).
* *Length of a function*: from the first statement after the docstring to its end. Modules below 10
  lines are left out of the lengths of modules.
* *Small modules*: below 100 lines, with one importer, which is in the same folder.
* *Import cycles*: modules in them, imports inside functions and for types included.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANNEXES = re.compile(
    r"onceward_\w+/|onceward/(verify|testing|demo)/|onceward/cli/(verify|demo|broker)\b"
)
"""Paths below ``src`` that are no part of the package proper, before and after they left it."""

WIDTH = 99
LISTS = (
    "verbs",
    "public",
    "documented",
    "of",
    "participles",
    "twice",
    "long",
    "modules",
    "small",
    "wide",
    "cycles",
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VERBS = _words(
    """
    abort accept acknowledge acquire adapt add adjust admit adopt advance aggregate align
    allocate allow alter analyse analyze announce answer append apply arm arrange ascertain
    ask assemble assert assign assume attach attempt avoid await balance become begin bind
    block book borrow break bring broadcast buffer build bundle cache calculate call cancel
    carry cast catch change chart check choose claim classify clean clear clone close coerce
    collect combine come commit compact compare compile complete compose compress compute
    concatenate confirm connect construct consume contain continue control convert copy
    correct count cover create cut deal decide declare decode decompress decrement deduplicate
    defer define delay delegate delete deliver demand deny derive describe deserialize detach
    detect determine differ disable discard disconnect dispatch display distribute divide do
    download drain draw drop dump emit empty enable encode encrypt end enforce enlist ensure
    enter enumerate erase escape establish estimate evaluate examine exchange exclude execute
    exit expand expect expire explain export expose express extend extract fail fall feed
    fetch fill filter find finish fire fit fix flag flatten flush fold follow forbid force
    forget fork format forward freeze gather generate get give go grant group grow guard guess
    halt hand handle hash heal hide hold identify ignore implement import include increase
    increment indicate inflate inform initialize inject insert inspect install instantiate
    intercept interpret interrupt introduce invalidate invoke isolate issue iterate join judge
    jump keep kill know label launch lay lead learn leave lend let lift limit link list listen
    load locate lock log look lose lower make manage map mark mask match materialize measure
    merge migrate mirror mock modify monitor move multiply name narrow negotiate normalize
    note notify number obey observe obtain offer omit open order overwrite pack pair parse
    part partition pass patch pause perform permit pick ping place plan plot point poll pop
    populate postpone predict prefer prefix prepare present preserve press pretend prevent
    print process produce profile project prolong promise promote protect prove provide prune
    publish pull purge push put query queue quit quote raise re-create re-read reach react
    read rebuild receive recognise recognize recompute reconnect record recover recreate
    redirect reduce reestablish refer refresh refuse register reject release reload rely
    remember remove rename render reopen reorder repair repeat replace replay reply report
    represent request require rerun reschedule reserve reset resolve respond restart restore
    restrict resume retain retrieve retry return reuse reverse revert review revoke rewind
    rewrite roll rotate round route run sample save say scale scan schedule search see seek
    select send separate serialize serve set settle shift show shrink shuffle shut sign signal
    simulate skip sleep slice sort spawn specify spell split squash stage stand start state
    stop store stream strip submit subscribe substitute subtract suggest sum supply support
    suppress suspend swap switch sync synchronize take tell terminate test throttle throw tie
    time toggle touch trace track transfer transform translate traverse treat trigger trim
    truncate trust try turn type undo unescape unify uninstall unlock unpack unregister
    unsubscribe unwrap update upgrade upload use validate vary verify view visit vote wait
    wake walk warn watch weigh widen withdraw wrap write yield zip
    """
)
AMBIGUOUS = _words(
    """
    block book buffer cache call cast change claim clean close commit contract control
    copy count cover cut deal delay demand display drop dump empty end estimate exchange
    export fall filter flag force fork format go group guard hash hold import issue join judge
    kill label lay lead limit link list load lock log look map mark mask match measure mirror
    name number offer open order pack pair part partition pass patch pause place plan
    plot point present process produce profile project promise query queue quote read record
    release report request reserve reset reverse review round route run sample save
    scale scan schedule search separate set shift show sign signal sleep slice sort split
    stage stand start state stop store stream strip sum supply support switch test time touch
    trace track transfer trigger trust turn type update upgrade use view visit vote wait walk
    watch wrap write
    """
)
NOUN_FOLLOWS = _words(
    """
    and are can had has have is may must of or that was were which who whose will
    """
)
PARTICIPLES = _words(
    """
    arriving asked been begun being born borne bought broken brought built caught chosen
    coming done drawn driven eaten fallen felt forgotten given going gone gotten grown having
    heard held hidden kept known laid led lent lost made meant met paid passing said seen sent
    shown shut spent spoken stood taken thought thrown told torn understood undone won worn
    written
    """
)
STATES = _words(
    """
    aborted acknowledged allowed bed bleed breed cached changed closed committed compressed
    configured connected created delayed deleted deprecated disabled embed enabled exceed
    expected expired failed feed fenced finished fixed frozen hundred ignored indeed inserted
    installed interrupted killed limited locked merged need nested ordered partitioned paused
    prepared proceed published quoted red refused rejected removed required resolved retried
    seed shared shed signed skipped sorted speed started stopped succeed supported suspended
    transacted trusted typed unsigned updated used validated verified wed weed written
    """
)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Offender:
    """A place in the code, and what it is in the list for."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"src/{self.path}:{self.line}: {self.text}"


def begins_with_a_verb(docstring: str) -> bool:
    """Say whether the first word is an imperative; see the module's docstring for the rule."""
    words = [word.strip("(),:;.").lower() for word in docstring.split()[:2]]
    if (
        not words
        or not re.fullmatch(r"[\w-]+[,:;.]?", docstring.split()[0])
        or words[0] not in VERBS
    ):
        return False
    return words[0] not in AMBIGUOUS or len(words) == 1 or words[1] not in NOUN_FOLLOWS


class Module:
    """One file of Python, parsed."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        self.tree = ast.parse(text, path)
        self.is_package = path.endswith("__init__.py")
        self.name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.folder = path.rpartition("/")[0]

    @cached_property
    def functions(self) -> list[tuple[Function, bool]]:
        """All functions, each with whether it is public: in no function, without underscores."""
        return list(_functions(self.tree, public=True))

    @cached_property
    def imports(self) -> set[str]:
        """Dotted names that it imports, as written, relative ones resolved."""
        package = self.name if self.is_package else self.name.rpartition(".")[0]
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package.rsplit(".", node.level - 1)[0] if node.level else ""
                source = ".".join(filter(None, (base, node.module)))
                found.update(f"{source}.{alias.name}" for alias in node.names)
        return found

    @cached_property
    def comments(self) -> int:
        """Lines that are a comment and nothing else, but for directives to tools."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(
            1
            for token in tokens
            if token.type == tokenize.COMMENT
            and token.line.lstrip().startswith("#")
            and not re.match(r"#\s*(fmt|type|ruff|noqa|!)", token.string)
        )

    @cached_property
    def names(self) -> list[tuple[str, int]]:
        """Names of functions, parameters, variables and attributes given here, with lines."""
        given: list[tuple[str, int]] = []
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTION):
                given.append((node.name, node.lineno))
            elif isinstance(node, ast.arg):
                given.append((node.arg, node.lineno))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                given.append((node.id, node.lineno))
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                given.append((node.attr, node.lineno))
        return given

    def offender(self, node: ast.stmt | int, text: str) -> Offender:
        """Return a place of this module for a list."""
        return Offender(self.path, node if isinstance(node, int) else node.lineno, text)


def _functions(node: ast.AST, public: bool) -> Iterator[tuple[Function, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTION):
            yield child, public and not child.name.startswith("_")
            yield from _functions(child, public=False)
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, public and not child.name.startswith("_"))
        else:
            yield from _functions(child, public)


def _decorators(function: Function) -> set[str]:
    return {
        ast.unparse(decorator).partition("(")[0].rpartition(".")[2]
        for decorator in function.decorator_list
    }


def body_length(function: Function) -> int:
    """Count the lines of a function from its first statement after the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def summarised(lengths: list[int]) -> str:
    """Format median, 90th percentile and maximum."""
    if not lengths:
        return "–"
    ordered = sorted(lengths)
    p90 = ordered[int(0.9 * (len(ordered) - 1))]
    return f"{statistics.median(ordered):.0f} / {p90} / {ordered[-1]}"


@dataclass
class Code:
    """The measured modules, and all others of the tree, which may import them."""

    modules: list[Module]
    others: list[Module] = field(default_factory=list)

    @classmethod
    def read(cls, files: Iterable[tuple[str, str]], whole: bool) -> Code:
        """Parse files by paths below ``src``, and set the annexes apart unless ``whole``."""
        modules = [Module(path, text) for path, text in sorted(files)]
        apart = [module for module in modules if not whole and ANNEXES.match(module.path)]
        return cls([module for module in modules if module not in apart], apart)

    @cached_property
    def by_name(self) -> dict[str, Module]:
        """All modules of the tree by their dotted names."""
        return {module.name: module for module in (*self.modules, *self.others)}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """Who imports a module, by names."""
        found: dict[str, set[str]] = defaultdict(set)
        for module in self.by_name.values():
            for there in self.imported_by(module):
                found[there].add(module.name)
        return found

    def imported_by(self, module: Module) -> set[str]:
        """Return the modules of the tree that ``module`` imports."""
        found = set()
        for name in module.imports:
            there = name if name in self.by_name else name.rpartition(".")[0]
            if there in self.by_name and there != module.name:
                found.add(there)
        return found

    @cached_property
    def public_functions(self) -> list[tuple[Module, Function]]:
        """Public functions of all modules: those that want a docstring."""
        return [
            (module, function)
            for module in self.modules
            for function, public in module.functions
            if public
            and not function.name.startswith("test_")
            and not _decorators(function) & {"overload", "setter"}
        ]

    @cached_property
    def docstrings(self) -> list[tuple[Module, Function, str]]:
        """Functions whose docstring should begin with a verb."""
        return [
            (module, function, docstring)
            for module in self.modules
            for function, _ in module.functions
            if (docstring := ast.get_docstring(function))
            and not function.name.startswith("test_")
            and not _decorators(function) & {"property", "cached_property", "setter", "fixture"}
        ]

    def undocumented(self) -> list[Offender]:
        """List public functions without a docstring."""
        return [
            m.offender(f, f.name) for m, f in self.public_functions if not ast.get_docstring(f)
        ]

    def silent(self) -> list[Offender]:
        """List public functions that neither have a docstring nor override one that has."""
        documented: dict[str, set[str]] = defaultdict(set)
        bases: dict[str, list[str]] = defaultdict(list)
        owner: dict[tuple[str, int], str] = {}
        for module in self.by_name.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    bases[node.name] += [
                        ast.unparse(base).partition("[")[0].rpartition(".")[2]
                        for base in node.bases
                    ]
                    for method in node.body:
                        if isinstance(method, _FUNCTION):
                            owner[module.path, method.lineno] = node.name
                            if ast.get_docstring(method):
                                documented[node.name].add(method.name)

        def is_inherited(name: str, method: str, seen: frozenset[str] = frozenset()) -> bool:
            return any(
                method in documented[base] or is_inherited(base, method, seen | {name})
                for base in bases[name]
                if base not in seen
            )

        return [
            m.offender(f, f.name)
            for m, f in self.public_functions
            if not ast.get_docstring(f)
            and not is_inherited(owner.get((m.path, f.lineno), ""), f.name)
        ]

    def without_verb(self) -> list[Offender]:
        """List docstrings of functions that do not begin with an imperative."""
        return [
            m.offender(f, f"{f.name}: {d.splitlines()[0]}")
            for m, f, d in self.docstrings
            if not begins_with_a_verb(d)
        ]

    def interface(self) -> dict[str, tuple[Module, ast.stmt]]:
        """Return the public names, dotted, with where each is defined."""
        found: dict[str, tuple[Module, ast.stmt]] = {}
        for package in ("onceward", "onceward_testing", "onceward_testing"):
            module = self.by_name.get(package)
            if module is None:
                continue
            for name in exported(module):
                there = self.resolve(module, name)
                if isinstance(there, Module):
                    for inner in exported(there):
                        definition = self.resolve(there, inner)
                        if definition is not None and not isinstance(definition, Module):
                            found[f"{package}.{name}.{inner}"] = definition
                elif there is not None:
                    found[f"{package}.{name}"] = there
        return found

    def resolve(self, module: Module, name: str) -> Module | tuple[Module, ast.stmt] | None:
        """Follow a name through re-exports to its module, class or function."""
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.ClassDef, *_FUNCTION)) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        if f"{node.module}.{alias.name}" in self.by_name:
                            return self.by_name[f"{node.module}.{alias.name}"]
                        if node.module in self.by_name and node.module != module.name:
                            return self.resolve(self.by_name[node.module], alias.name)
        return self.by_name.get(f"{module.name}.{name}")

    @cached_property
    def public_docstrings(self) -> list[tuple[Module, Function, str]]:
        """Functions of the interface with a docstring that should begin with a verb."""
        found = {}
        for module, node in self.interface().values():
            candidates = (
                [node]
                if isinstance(node, _FUNCTION)
                else node.body
                if isinstance(node, ast.ClassDef)
                else []
            )
            for function in candidates:
                if isinstance(function, _FUNCTION) and not function.name.startswith("_"):
                    found[module.path, function.lineno] = module, function
        wanted = set(found)
        every = Code([*self.modules, *self.others]).docstrings if self.others else self.docstrings
        return [(m, f, d) for m, f, d in every if (m.path, f.lineno) in wanted]

    def public_without_verb(self) -> list[Offender]:
        """List docstrings of the interface that do not begin with an imperative."""
        return [
            m.offender(f, f"{f.name}: {d.splitlines()[0]}")
            for m, f, d in self.public_docstrings
            if not begins_with_a_verb(d)
        ]

    def classes_twice(self) -> list[Offender]:
        """List classes whose name another module defines, too."""
        defined: dict[str, list[Offender]] = defaultdict(list)
        for module in self.modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    defined[node.name].append(module.offender(node, node.name))
        twice = {
            name: places
            for name, places in defined.items()
            if len({place.path for place in places}) > 1
        }
        return [place for name in sorted(twice) for place in twice[name]]

    def functions_of(self) -> list[Offender]:
        """List functions named ``…_of`` or ``of_…``."""
        return [
            module.offender(function, function.name)
            for module in self.modules
            for function, _ in module.functions
            if re.search(r"_of$|^_?of(_|$)", function.name)
        ]

    def participles(self) -> list[Offender]:
        """List names that are a participle and nothing else."""
        return [
            module.offender(line, name)
            for module in self.modules
            for name, line in module.names
            if (word := name.strip("_")) in PARTICIPLES - STATES
            or (re.fullmatch(r"[a-z]+ed", word) and word not in STATES)
        ]

    def long_functions(self, limit: int = 50) -> list[Offender]:
        """List functions of more than ``limit`` lines, longest first."""
        found = [
            (
                body_length(function),
                module.offender(function, f"{function.name} {body_length(function)}"),
            )
            for module in self.modules
            for function, _ in module.functions
            if body_length(function) > limit
        ]
        return [place for _, place in sorted(found, key=lambda each: -each[0])]

    def long_modules(self, limit: int = 500) -> list[Offender]:
        """List modules of more than ``limit`` lines, longest first."""
        long = [module for module in self.modules if len(module.lines) > limit]
        return [
            module.offender(1, str(len(module.lines)))
            for module in sorted(long, key=lambda m: -len(m.lines))
        ]

    def small_modules(self) -> list[Offender]:
        """List modules below 100 lines whose one importer is in their own folder."""
        found = []
        for module in self.modules:
            importers = self.importers[module.name]
            if module.is_package or len(module.lines) >= 100 or len(importers) != 1:
                continue
            (importer,) = importers
            if self.by_name[importer].folder == module.folder:
                found.append(
                    module.offender(1, f"{len(module.lines)} lines, imported by {importer}")
                )
        return found

    def wide_lines(self) -> list[Offender]:
        """List lines of more than 99 columns."""
        return [
            module.offender(number, line.strip()[:60])
            for module in self.modules
            for number, line in enumerate(module.lines, start=1)
            if len(line) > WIDTH
        ]

    def cycles(self) -> list[Offender]:
        """List the modules that import each other in a circle."""
        graph = {module.name: self.imported_by(module) for module in self.modules}
        return [
            self.by_name[name].offender(1, " → ".join(sorted(circle)))
            for circle in _circles(graph)
            for name in sorted(circle)
        ]

    def offenders(self, what: str) -> list[Offender]:
        """Return the list behind one of ``LISTS``."""
        return {
            "verbs": self.without_verb,
            "public": self.public_without_verb,
            "documented": self.undocumented,
            "silent": self.silent,
            "of": self.functions_of,
            "participles": self.participles,
            "twice": self.classes_twice,
            "long": self.long_functions,
            "modules": self.long_modules,
            "small": self.small_modules,
            "wide": self.wide_lines,
            "cycles": self.cycles,
        }[what]()

    def figures(self) -> dict[str, tuple[int | float | str, str]]:
        """Return each figure by its name, with its goal."""
        lines = sum(len(module.lines) for module in self.modules)
        lengths = [
            body_length(function) for module in self.modules for function, _ in module.functions
        ]
        sizes = [len(module.lines) for module in self.modules if len(module.lines) >= 10]
        participles = Counter(place.text for place in self.participles())
        return {
            "lines": (lines, "≤ 46000"),
            "modules": (len(self.modules), "≤ 310"),
            "modules > 500 lines": (len(self.long_modules()), ""),
            "module length median / p90 / max": (summarised(sizes), ""),
            "function length median / p90 / max": (summarised(lengths), "max ≤ 50"),
            "functions > 50 lines": (len(self.long_functions()), "0"),
            "public functions documented %": (
                _percent(
                    len(self.public_functions) - len(self.undocumented()),
                    len(self.public_functions),
                ),
                "≥ 85",
            ),
            "… or overriding a documented one %": (
                _percent(
                    len(self.public_functions) - len(self.silent()), len(self.public_functions)
                ),
                "",
            ),
            "docstrings that begin with a verb %": (
                _percent(len(self.docstrings) - len(self.without_verb()), len(self.docstrings)),
                "≥ 60",
            ),
            "… of the public interface %": (
                _percent(
                    len(self.public_docstrings) - len(self.public_without_verb()),
                    len(self.public_docstrings),
                ),
                "100",
            ),
            "class names with two meanings": (
                len({place.text for place in self.classes_twice()}),
                "≤ 10",
            ),
            "functions named …_of / of_…": (len(self.functions_of()), "≤ 20"),
            "participles as names, places": (participles.total(), ""),
            "participles as names, words": (len(participles), ""),
            "lines over 99 columns": (len(self.wide_lines()), "0"),
            "whole-line comments %": (
                _percent(sum(m.comments for m in self.modules), lines),
                "≥ 2",
            ),
            "modules < 100 lines with one importer, in their folder": (
                len(self.small_modules()),
                "",
            ),
            "modules in import cycles": (len(self.cycles()), "0"),
        }


def exported(module: Module) -> list[str]:
    """Return the names of ``__all__``, or else the classes and functions without an underscore."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            return list(ast.literal_eval(node.value))
    definitions = (
        node for node in module.tree.body if isinstance(node, (ast.ClassDef, *_FUNCTION))
    )
    return [node.name for node in definitions if not node.name.startswith("_")]


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def _circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    reached = {name: _reach(graph, name) for name in graph}
    circles: list[set[str]] = []
    for name in graph:
        circle = {other for other in reached[name] if name in reached.get(other, ())}
        if len(circle) > 1 and circle not in circles:
            circles.append(circle)
    return circles


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for there in graph.get(ahead.pop(), ()):
            if there not in seen:
                seen.add(there)
                ahead.append(there)
    return seen


def default_root() -> Path:
    """Return the repository of the current folder, or else this file's."""
    return next(
        (folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "src").is_dir()), ROOT
    )


def files_below(root: Path) -> Iterator[tuple[str, str]]:
    """Yield path and text of all Python files, below ``src`` where there is one."""
    source = root / "src" if (root / "src").is_dir() else root.parent
    top = source if source.name == "src" else root
    for path in top.rglob("*.py"):
        yield path.relative_to(source).as_posix(), path.read_text(encoding="utf-8")


def files_of_ref(root: Path, ref: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of all Python files below ``src`` in a commit."""
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", ref, "src"], cwd=root, stdout=archive, check=True)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name.endswith(".py") else None
                if file:
                    yield member.name.removeprefix("src/"), file.read().decode()


def table(columns: dict[str, Code]) -> list[list[str]]:
    """Return the rows of the table, its head first."""
    figures = {title: code.figures() for title, code in columns.items()}
    first = next(iter(figures.values()))
    rows = [
        [name, *(_shown(each[name][0]) for each in figures.values()), first[name][1]]
        for name in first
    ]
    return [["", *columns, "goal"], *rows]


def _shown(value: float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(rows: list[list[str]], markdown: bool) -> None:
    """Print rows with rich, or as Markdown, which is what a file or a pipe gets."""
    if markdown or not sys.stdout.isatty():
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|---|" + "--:|" * (len(rows[0]) - 1))
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(rows[0][0], *rows[0][1:])
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in rows[1:]:
        shown.add_row(*row)
    Console().print(shown)


def main() -> None:
    """Measure what the command line names, and print it."""
    parser = argparse.ArgumentParser(
        description="Measure the code base: sizes, words, imports, beside their goals."
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=default_root(),
        help="repository, or the folder of another package",
    )
    parser.add_argument("--all", action="store_true", help="measure the annexes, too")
    parser.add_argument("--before", metavar="REF", help="print the figures of this commit beside")
    parser.add_argument(
        "--list", choices=LISTS, metavar="WHAT", help=f"name the offenders: {', '.join(LISTS)}"
    )
    parser.add_argument(
        "--below",
        default="",
        metavar="PATH",
        help="with --list, only files whose path begins so: src/onceward/engine",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--markdown", action="store_true", help="print Markdown, on a terminal, too"
    )
    args = parser.parse_args()
    now = Code.read(files_below(args.root.resolve()), args.all)
    if args.list:
        places = (str(place) for place in now.offenders(args.list))
        sys.stdout.writelines(f"{place}\n" for place in places if place.startswith(args.below))
        return
    columns = {"now": now}
    if args.before:
        columns = {
            args.before: Code.read(files_of_ref(args.root, args.before), args.all),
            **columns,
        }
    if args.json:
        figures = {
            title: {name: value for name, (value, _) in code.figures().items()}
            for title, code in columns.items()
        }
        sys.stdout.write(json.dumps(figures, ensure_ascii=False, indent=2) + "\n")
    else:
        print_table(table(columns), args.markdown)


if __name__ == "__main__":
    main()
