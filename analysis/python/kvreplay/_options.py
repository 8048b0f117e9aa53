"""Keywords of the package's functions. One list serves help() and the check of every call."""
from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Callable, Iterable, Sequence, Tuple, TypeVar

from . import _core

Function = TypeVar("Function", bound=Callable[..., Any])


class KeywordError(_core.InputError, TypeError):
    """A keyword that a function does not take: an InputError and, as in Python itself, a TypeError."""


def takes(options: Sequence[Tuple[str, str]] = (), more: Iterable[str] = (), program: bool = False) -> Callable[[Function], Function]:
    """Makes a function reject unknown keywords. Known are its own and those in `more`, which its **keywords collect. options: name
    and meaning of the library's keywords, for the docstring. program: the kvreplay program checks the **keywords instead."""
    def checked(function: Function) -> Function:
        names = {*keywords_of(function), *more}
        called = function.__qualname__.removesuffix(".__init__")

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
