"""Objects that installed packages add by entry point: schedules, collectives, baselines, emitters and workloads.

A package names an object under the entry point group ``scaleacross.<kind>``. Its names come from the package metadata.
The object is loaded when its name is first used, so a broken package affects only those who use it. A bundled object
keeps its name even if a package claims the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal, NamedTuple, TypeVar

from scaleacross.errors import PluginError, ScaleAcrossError

Kind = Literal["schedules", "collectives", "baselines", "emitters", "workloads"]
KINDS: Final[tuple[Kind, ...]] = ("schedules", "collectives", "baselines", "emitters", "workloads")
K = TypeVar("K", bound=str)
V = TypeVar("V")


class Plugin(NamedTuple):
    """One object that a package adds.

    Attributes:
        kind: one of ``KINDS``.
        name: as it is given on the command line or in a file.
        value: location of the object, ``package.module:attribute``.
        package: name and version of the package.
    """

    kind: Kind
    name: str
    value: str
    package: str

    def __str__(self) -> str:
        return f"plugin '{self.name}' of {self.package} ({self.value}, entry point scaleacross.{self.kind})"

    def failed(self, error: Exception) -> PluginError:
        """Return the error to raise after the package's own code raised ``error``."""
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return PluginError(f"{self}: {reason}; mend the package or uninstall it")


@cache
def plugins() -> tuple[Plugin, ...]:
    """Entry points of all installed packages, sorted by kind and name. No object is loaded."""
    found = entry_points()
    groups = {kind: found.select(group=f"scaleacross.{kind}") for kind in KINDS}
    return tuple(sorted(_plugin(kind, one) for kind, group in groups.items() for one in group))


def _plugin(kind: Kind, one: EntryPoint) -> Plugin:
    package = f"{one.dist.name} {one.dist.version}" if one.dist is not None else "an unnamed package"
    return Plugin(kind, one.name, one.value, package)


def added_names(kind: Kind) -> tuple[str, ...]:
    """Names that packages add to a kind, in sorted order and without repeats."""
    return tuple(dict.fromkeys(one.name for one in plugins() if one.kind == kind))


class Registry(Mapping[K, V]):
    """Mapping from name to object: bundled ones first, then those of packages, each loaded when it is looked up.

    Args:
        kind: kind of entry point to read.
        bundled: bundled objects; a package's object of the same name is never used.
        accept: checks a package's object, guards its functions and returns it; it may raise any exception to refuse it.

    A look-up raises PluginError if the package cannot be loaded, if ``accept`` refuses its object, or if two packages
    claim the name.
    """

    def __init__(self, kind: Kind, bundled: Mapping[K, V], accept: Callable[[Plugin, Any], V]) -> None:
        self._kind, self._bundled, self._accept = kind, bundled, accept
        self._loaded: dict[str, V] = {}

    def __getitem__(self, name: K) -> V:
        if name in self._bundled:
            return self._bundled[name]
        if name not in self._loaded:
            mine = [one for one in plugins() if (one.kind, one.name) == (self._kind, name)]
            if not mine:
                raise KeyError(name)
            if len(mine) > 1:
                raise PluginError(f"{' and '.join(map(str, mine))}: one name, two packages; uninstall one of them")
            self._loaded[name] = self._load(mine[0])
        return self._loaded[name]

    def _load(self, plugin: Plugin) -> V:
        try:
            return self._accept(plugin, EntryPoint(plugin.name, plugin.value, plugin.kind).load())
        except PluginError:
            raise
        except Exception as error:
            raise plugin.failed(error) from error

    def __contains__(self, name: object) -> bool:
        return name in self._bundled or name in added_names(self._kind)

    def __iter__(self) -> Iterator[K]:
        yield from self._bundled
        yield from (name for name in added_names(self._kind) if name not in self._bundled)  # type: ignore[misc]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def hides(self, name: str) -> bool:
        """Whether a bundled object has this name, so that a package's object of that name is never used."""
        return name in self._bundled


def guarded(plugin: Plugin, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function`` of a package so that its failures name the package; ScaleAcrossError passes unchanged.

    Raises:
        TypeError: ``function`` is not callable.
    """
    _require_callable(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _naming(plugin):
            return function(*args, **kwargs)

    return call


def guarded_steps(plugin: Plugin, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap a generator function as ``guarded`` does; its failures are caught while the caller iterates.

    Raises:
        TypeError: ``function`` is not callable.
    """
    _require_callable(function)

    @wraps(function)
    def steps(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with _naming(plugin):
            yield from function(*args, **kwargs)

    return steps


def _require_callable(function: object) -> None:
    if not callable(function):
        raise TypeError(f"{function!r} cannot be called")


@contextmanager
def _naming(plugin: Plugin) -> Iterator[None]:
    """Turn unexpected failures of a package's code into errors that name the package."""
    try:
        yield
    except ScaleAcrossError:
        raise
    except Exception as error:
        raise plugin.failed(error) from error


def expect(value: Any, wanted: type[V]) -> V:
    """Return ``value`` if it is an instance of ``wanted``.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, wanted):
        raise TypeError(f"a {wanted.__module__}.{wanted.__qualname__} is expected, not a {type(value).__name__}")
    return value
