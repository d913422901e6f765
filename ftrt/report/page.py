"""One HTML file with everything in it: it needs no network, and fits a phone and a dark screen."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ftrt.report.look import Look, Picture

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --muted: #59636e; --ground: #fff;
  --soft: #f6f8fa; --line: #d1d9e0; --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --muted: #9198a1; --ground: #0d1117;
  --soft: #151b23; --line: #3d444d; --good: #3fb950; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1rem; color: var(--text);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
p, figcaption { color: var(--text); margin: .4rem 0; }
figure { margin: 0; }
figure img { width: 100%; height: auto; display: block; }
figcaption, .note { color: var(--muted); font-size: .875rem; }
.verdict { border-left: 4px solid var(--good); background: var(--soft); padding: .6rem .8rem;
  margin: .6rem 0; font-weight: 600; }
.verdict.bad { border-color: var(--bad); }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-size: .8125rem; width: 100%;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .55rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td.text, th.text { text-align: left; }
td.long { white-space: normal; min-width: 14rem; text-align: left; }
th { background: var(--soft); }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--soft);
  text-align: left; }
@media (max-width: 40rem) { th:first-child, td:first-child { white-space: normal;
  min-width: 6.5rem; } }
tr:last-child td { border-bottom: 0; }
tr.bad td { color: var(--bad); }
code { background: var(--soft); border-radius: 4px; padding: .1rem .3rem; font-size: .85em; }
"""


@dataclass(frozen=True)
class Text:
    """A cell of a table that is read, not compared: left-aligned; ``wraps`` if it is long."""

    text: str
    wraps: bool = False


@dataclass
class Page:
    """A page that is written from the top to the bottom."""

    title: str
    _parts: list[str] = field(default_factory=list)

    def verdict(self, text: str, good: bool) -> None:
        """Add the sentence that matters most."""
        self._parts.append(f'<p class="verdict{"" if good else " bad"}">{escape(text)}</p>')

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def note(self, text: str) -> None:
        """Add a sentence."""
        self._parts.append(f'<p class="note">{escape(text)}</p>')

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Add names and values, values as they would be typed."""
        for name, value in facts:
            self._parts.append(f"<p>{escape(name)}: <code>{escape(value)}</code></p>")

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], bad: Sequence[int] = ()
    ) -> None:
        """Add a table; rows whose index is in ``bad`` are marked."""
        texts = {i for row in rows for i, cell in enumerate(row) if isinstance(cell, Text)}
        head = "".join(
            f'<th class="text">{escape(c)}</th>' if i in texts else f"<th>{escape(c)}</th>"
            for i, c in enumerate(columns)
        )
        body = []
        for index, row in enumerate(rows):
            mark = ' class="bad"' if index in bad else ""
            body.append(f"<tr{mark}>{''.join(map(_cell, row))}</tr>")
        self._parts.append(
            f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )

    def picture(self, picture: Picture) -> bytes:
        """Add a figure, drawn for every screen; the PNG for a light and wide one."""
        drawn = {
            (dark, narrow): picture.png(Look(dark, narrow))
            for dark in (False, True)
            for narrow in (False, True)
        }
        sources = {key: _data(png) for key, png in drawn.items()}
        dark, phone = "(prefers-color-scheme: dark)", "(max-width: 40rem)"
        self.heading(picture.title)
        self._parts.append(
            "<figure><picture>"
            f'<source media="{phone} and {dark}" srcset="{sources[True, True]}">'
            f'<source media="{phone}" srcset="{sources[False, True]}">'
            f'<source media="{dark}" srcset="{sources[True, False]}">'
            f'<img alt="{escape(picture.title)}" src="{sources[False, False]}">'
            f"</picture><figcaption>{escape(picture.caption)}</figcaption></figure>"
        )
        return drawn[False, False]

    def html(self) -> str:
        """The whole file."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<link rel="icon" href="data:,">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head>\n"
            f"<body><h1>{escape(self.title)}</h1>\n" + "\n".join(self._parts) + "\n</body></html>\n"
        )


def _cell(value: Any) -> str:
    if isinstance(value, Text):
        kind = "long" if value.wraps else "text"
        return f'<td class="{kind}">{escape(value.text)}</td>'
    if value is None:
        return "<td>–</td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, float):
        return f"<td>{value:.4g}</td>"
    if isinstance(value, int):
        return f"<td>{value:,}</td>"
    return f"<td>{escape(str(value))}</td>"


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
