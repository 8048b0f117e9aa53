"""Keywords of the package's functions. One list serves help() and the check of every call."""
from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from . import _core

Function = TypeVar("Function", bound=Callable[..., Any])


class KeywordError(_core.InputError, TypeError):
    """A keyword that a function does not take: an InputError and, as in Python itself, a TypeError."""


def listed(query: str, names: Iterable[str], **meanings: str) -> List[Tuple[str, str]]:
    """Name and text of those options of a query that are among `names`. meanings: other words for some, of functions that take less
    than the command does."""
    known = set(names)
    return [(name, meanings.get(name, meaning) + rest) for name, meaning, rest in _core.options(query) if name in known]


def ask(query: str, layer: Optional[_core.Layer], given: Mapping[str, Any], **inputs: Any) -> Dict[str, Any]:
    """Results of a query by name. given: a function's locals(), of which the options of the query are passed on."""
    return _core.ask(query, layer, inputs, {name: given[name] for name in QUERIES[query] if given[name] is not None})


QUERIES: Dict[str, List[str]] = {}  # the keywords that a query's function passes on


def takes(query: Union[str, Sequence[Tuple[str, str]]] = (), more: Iterable[str] = (), program: bool = False,
          **meanings: str) -> Callable[[Function], Function]:
    """Makes a function reject unknown keywords. Known are its own and those in `more`, which its **keywords collect. query: the
    library's query whose options the docstring lists, in the words of `meanings` where a function takes less than a command; or
    a list of names and meanings. program: the kvreplay program checks the **keywords instead."""
    def checked(function: Function) -> Function:
        names = {*keywords_of(function), *more}
        called = function.__qualname__.removesuffix(".__init__")
        options = listed(query, keywords_of(function), **meanings) if isinstance(query, str) else query
        if isinstance(query, str):
            QUERIES[query] = [name for name, _ in options]

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not program and not names.issuperset(keywords):
                unknown = next(name for name in keywords if name not in names)
                raise KeywordError(f"{called}: unknown option '{unknown}'{_core.alternatives(unknown, sorted(names))}")
            try:
                return function(*arguments, **keywords)
            except _core.InputError as error:
                found = program and re.search("unknown option '--(.*)'$", str(error))  # not close to any option of the program
                if not found:
                    raise
                raise KeywordError(f"{error}{_core.alternatives(found[1], sorted(names))}") from None

        if options:
            lines = "".join(f"    {name}: {meaning}\n" for name, meaning in options)
            call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions [what holds where they are not given]:\n\n{lines}"
        return call  # type: ignore[return-value]
    return checked


def require_shape(name: str, fits: bool, wanted: str, found: Any) -> None:
    if not fits:
        raise _core.InputError(f"{name}: expected shape {wanted}, found shape {list(found.shape)}")


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """The names of a function's keyword parameters."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, one in inspect.signature(function).parameters.items() if one.kind in kinds and name != "self"]
