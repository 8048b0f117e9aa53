"""What notebooks show of results: a small table, and a heatmap where matplotlib is there."""
from __future__ import annotations

from html import escape
from typing import Any, Iterable, Sequence

import numpy as np

from .results import picture

MOST = 12  # heads in a table; a heatmap has all


def table(title: str, columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(text(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"{escape(title)}<table>{line(columns, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def text(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, (float, np.floating)) else str(cell)


def heads(values: Any) -> list[Any]:
    """The first few of an array's, of one a head."""
    return list(values[:MOST]) + (["..."] if len(values) > MOST else [])


def head_names(count: int) -> list[str]:
    return heads([f"head {head}" for head in range(count)])


__all__ = ["head_names", "heads", "picture", "table"]
