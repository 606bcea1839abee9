"""The report as one HTML file: no network, no script from elsewhere; for a phone and for paper."""

from collections.abc import Iterable
from html import escape
from itertools import groupby

from sweeps.claims import FAILS, HOLDS, RULE, UNDECIDED, Finding, interval_text

STYLE = """
:root { color-scheme: light; --ink: #1b1b1b; --soft: #5a5a5a; --line: #d8d8d8; --paper: #fff; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0; }
p { margin: .4rem 0; }
.where, .rule, .note { color: var(--soft); font-size: .85rem; }
.counts span { margin-right: 1rem; white-space: nowrap; }
.claim { padding: .9rem 0; border-top: 1px solid var(--line); break-inside: avoid; }
.finding { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: .5rem 1.5rem;
  align-items: start; margin: .5rem 0 1rem; break-inside: avoid; }
.verdict { display: inline-block; padding: 0 .5rem; border: 1px solid; border-radius: 1rem;
  font-size: .85rem; font-weight: 600; }
.holds { color: #00654a; } .fails { color: #a03b00; } .undecided { color: #555; }
.holds::before { content: "✓ "; } .fails::before { content: "✗ "; }
.undecided::before { content: "? "; }
.number { font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; max-width: 34rem; }
svg text { font-family: system-ui, sans-serif; }
.curve { cursor: pointer; outline: none; }
.reach { stroke: transparent; stroke-width: 14; fill: none; pointer-events: stroke; }
.curve:hover path:not(.reach), .curve:focus path:not(.reach), .curve.told path:not(.reach)
  { stroke-width: 3; }
.told-of { min-height: 4em; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .8rem/1.35 ui-monospace, monospace; color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-top: 1px solid var(--line);
  white-space: nowrap; }
th:nth-child(-n+3), td:nth-child(-n+3) { text-align: left; }
code { font-size: .8rem; overflow-wrap: anywhere; }
@media (max-width: 45rem) { .finding { grid-template-columns: minmax(0, 1fr); } }
@media print {
  @page { margin: 15mm; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .finding { grid-template-columns: 45% 55%; gap: 0; }
  .told-of { display: none; }
  .wide { overflow: visible; }
  table { font-size: 6.5pt; } th, td { padding: .1rem .3rem; }
  a { color: inherit; text-decoration: none; }
}
"""
# Hovering shows a title by itself; a finger has no hover, and neither has a keyboard.
SCRIPT = """
for (const curve of document.querySelectorAll(".curve")) {
  const place = curve.closest("figure").querySelector(".told-of");
  const tell = () => {
    curve.closest("svg").querySelectorAll(".told").forEach(one => one.classList.remove("told"));
    curve.classList.add("told");
    place.textContent = curve.querySelector("title").textContent;
  };
  for (const event of ["pointerenter", "click", "focus"]) curve.addEventListener(event, tell);
}
"""
HINT = "A curve names its run and its command when it is pointed at or tapped."


def figure(svg: str) -> str:
    """A drawing with the line below it that names the curve pointed at."""
    return f'<figure style="margin:0">{svg}<p class="told-of"></p></figure>'


def _finding(finding: Finding, svg: str) -> str:
    badge = f'<span class="verdict {finding.verdict}">{finding.verdict}</span>'
    lines = [f"<p>{badge} {escape(finding.env)}</p>", f"<p>{escape(finding.measured)}</p>"]
    if finding.n:
        interval = escape(interval_text(finding))
        lines.append(f'<p class="number">difference {interval}, n = {finding.n}</p>')
    return f'<div class="finding"><div>{"".join(lines)}</div>{figure(svg) if svg else ""}</div>'


def claims_section(findings: list[Finding], drawings: list[str]) -> str:
    """Every claim with its findings, each beside its figure."""
    parts = []
    pairs = zip(findings, drawings, strict=True)
    for (text, where), some in groupby(pairs, key=lambda pair: (pair[0].claim, pair[0].where)):
        inner = "".join(_finding(finding, svg) for finding, svg in some)
        parts.append(
            f'<section class="claim"><h3>{escape(text)}</h3><p class="where">{escape(where)}</p>'
            f"{inner}</section>"
        )
    return "".join(parts)


def table(rows: Iterable[Iterable[str]]) -> str:
    """The first row is the head."""
    head, *body = [[escape(cell) for cell in row] for row in rows]
    lines = ["".join(f"<th>{cell}</th>" for cell in head)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in body]
    inner = "".join(f"<tr>{line}</tr>" for line in lines[1:])
    return (
        f'<div class="wide"><table><thead><tr>{lines[0]}</tr></thead>'
        f"<tbody>{inner}</tbody></table></div>"
    )


def page(
    findings: list[Finding],
    drawings: list[str],
    figures: list[tuple[str, str]],
    rows: list[list[str]],
    note: str,
    commands: list[str],
) -> str:
    """The whole file: claims, then figures with their titles, the table, and the commands."""
    counts = {v: sum(f.verdict == v for f in findings) for v in (HOLDS, FAILS, UNDECIDED)}
    counted = "".join(
        f'<span><span class="verdict {name}">{name}</span> {count}</span>'
        for name, count in counts.items()
    )
    drawn = "".join(f"<h3>{escape(title)}</h3>{figure(svg)}" for title, svg in figures)
    typed = "".join(f"<li><code>{escape(command)}</code></li>" for command in commands)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What the runs say of the papers' claims</title>
<style>{STYLE}</style>
</head>
<body>
<h1>What the runs say of the papers' claims</h1>
<p class="counts">{counted}</p>
<p class="rule">{escape(RULE)}</p>
<p class="rule">{HINT}</p>
{claims_section(findings, drawings)}
<h2>Figures</h2>
{drawn}
<h2>Table</h2>
{table(rows)}
<p class="note">{escape(note)}</p>
<h2>Commands</h2>
<details><summary>{len(commands)} runs</summary><ul>{typed}</ul></details>
<script>{SCRIPT}</script>
</body>
</html>
"""
