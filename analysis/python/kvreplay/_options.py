"""Keywords of the package's functions: one list makes what help() says and what a call takes."""
from __future__ import annotations

import functools
import inspect
import re
from typing import Any, Callable, Iterable, Sequence, Tuple, TypeVar

from . import _core

Function = TypeVar("Function", bound=Callable[..., Any])


class KeywordError(_core.InputError, TypeError):
    """A keyword that a call does not take: an InputError, and a TypeError as Python's own."""


def takes(options: Sequence[Tuple[str, str]] = (), more: Iterable[str] = (), program: bool = False) -> Callable[[Function], Function]:
    """Makes a function refuse keywords that are neither its own nor among `more`, which its **keywords collect. options: name
    and meaning of those that the library reads, for its docstring. program: the **keywords are the program's, which refuses others."""
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
                found = program and re.search("unknown option '--(.*)'$", str(error))  # near none of the program's
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
    """What may be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, one in inspect.signature(function).parameters.items() if one.kind in kinds and name != "self"]
