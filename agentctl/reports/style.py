"""The style sheet of a report: for light and dark mode, for screen and paper."""

from __future__ import annotations

from importlib.resources import files

_PLOTS = (files("agentctl.page") / "static" / "plots.css").read_text(encoding="utf-8")

_PAGE = """
:root { color-scheme: light dark;
  --back: #ffffff; --panel: #f5f7fa; --rule: #d5dbe3; --text: #1a1f27; --dim: #57606c;
  --new: #0b62c4; --old: #6b7683; --good: #14713a; --bad: #b3261e; --heat: 214, 106, 0;
  --kw: #8a2f9b; --str: #14713a; --num: #9a4a00; --com: #5f6873; --call: #0b5cad; --name: #0b5cad;
  --add: #e3f5e8; --del: #fdeae8; }
@media (prefers-color-scheme: dark) { :root {
  --back: #11151b; --panel: #1a2029; --rule: #343d4a; --text: #e3e8ef; --dim: #a3aebc;
  --new: #6cb2ff; --old: #98a4b3; --good: #6fce8f; --bad: #ff8f85; --heat: 255, 160, 60;
  --kw: #d9a0e8; --str: #8fd6a2; --num: #f0b070; --com: #98a4b3; --call: #8cc2ff; --name: #8cc2ff;
  --add: #12331f; --del: #3f1a18; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1.25rem 4rem; background: var(--back);
  color: var(--text); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 .75rem; padding-bottom: .3rem;
  border-bottom: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; }
.dim, figcaption, footer { color: var(--dim); }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
a { color: var(--new); }
:focus-visible { outline: 2px solid var(--new); outline-offset: 2px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0; padding: 0; }
.card { background: var(--panel); border: 1px solid var(--rule); border-radius: .5rem; padding: .7rem .9rem; }
.card dt { color: var(--dim); font-size: .84rem; } .card dd { margin: 0; }
.card .big { font-size: 1.5rem; font-weight: 650; line-height: 1.25; } .card .note { color: var(--dim);
  font-size: .84rem; }
figure { margin: 1rem 0 1.5rem; overflow-x: auto; } figcaption { font-size: .88rem; max-width: 46rem; }
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--back) 40%, transparent) left / 2.5rem 100% local no-repeat,
  linear-gradient(to left, var(--back) 40%, transparent) right / 2.5rem 100% local no-repeat,
  linear-gradient(to right, var(--rule), transparent) left / .8rem 100% no-repeat,
  linear-gradient(to left, var(--rule), transparent) right / .8rem 100% no-repeat; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; margin: .75rem 0; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--dim); font-weight: 600; overflow-wrap: normal; }
.data td { overflow-wrap: break-word; } .data td code { overflow-wrap: normal; white-space: nowrap; }
.data .said { min-width: 14rem; overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
ol.path { padding-left: 1.4rem; } ol.path > li { margin: 1rem 0; } ol.path ul { margin: .2rem 0; }
.better { color: var(--good); font-weight: 600; } .worse { color: var(--bad); font-weight: 600; }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: .5rem; padding: .8rem;
  overflow-x: auto; margin: .75rem 0; white-space: pre; }
pre code { overflow-wrap: normal; }
table.code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  background: var(--panel); border: 1px solid var(--rule); margin: 0; }
table.code td { border: 0; padding: 0 .6rem; white-space: pre; overflow-wrap: normal; }
table.code .ln, table.code .hot { color: var(--dim); text-align: right; user-select: none; width: 1%; }
.heat1 td { background: rgba(var(--heat), .07); } .heat2 td { background: rgba(var(--heat), .15); }
.heat3 td { background: rgba(var(--heat), .27); }
.kw { color: var(--kw); } .str { color: var(--str); } .num { color: var(--num); }
.com { color: var(--com); font-style: italic; } .call, .built { color: var(--call); }
.name { color: var(--name); font-weight: 650; }
.add { background: var(--add); } .del { background: var(--del); } .hunk { color: var(--dim); }
details { margin: 1rem 0; } summary { cursor: pointer; font-weight: 600; }
footer { margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: 1rem; font-size: .88rem; }
@media (max-width: 40rem) { body { padding: 1rem .8rem 3rem; } h1 { font-size: 1.5rem; }
  th, td { padding: .3rem .35rem; } .cards { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .card { padding: .55rem .65rem; } .card .big { font-size: 1.2rem; } }
@media print { body { max-width: none; } details > * { display: block; } pre, table.code { border: 0; } }
"""

SHEET = _PAGE + _PLOTS
