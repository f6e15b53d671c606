"""The report page's style sheet: light and dark, from 390 pixels up; nothing is loaded from outside."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1d2733; --dim: #5c6975; --rule: #d9dee4;
  --blue: #2a6fb8; --orange: #c2660c; --green: #25794a; --red: #b93434; --yellow: #8a6500;
  --green-soft: #e3f3e9; --red-soft: #fae6e5; --yellow-soft: #faf1d8; --blue-soft: #e4eef8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12171d; --card: #1a2129; --ink: #e4e9ee; --dim: #9aa7b3; --rule: #303a45;
    --blue: #6cb0f2; --orange: #f0a050; --green: #64c88c; --red: #f08080; --yellow: #e5c060;
    --green-soft: #17342a; --red-soft: #3d2022; --yellow-soft: #38301a; --blue-soft: #1a2f45;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 22px 0 8px; }
h4 { font-size: 13px; margin: 16px 0 6px; color: var(--dim); font-weight: 600; }
p { margin: 6px 0; overflow-wrap: anywhere; }
.dim { color: var(--dim); }
.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font: 12.5px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
pre { margin: 8px 0 0; padding: 12px; overflow: auto; max-height: 420px; background: var(--paper);
  border: 1px solid var(--rule); border-radius: 8px; white-space: pre-wrap; overflow-wrap: anywhere; }
pre.tail { display: flex; flex-direction: column-reverse; }
header { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
header p { flex-basis: 100%; margin: 0; }
.pill { display: inline-block; padding: 1px 10px; border-radius: 99px; font-size: 13px;
  font-weight: 600; white-space: nowrap; background: var(--blue-soft); color: var(--blue); }
.pill.good { background: var(--green-soft); color: var(--green); }
.pill.bad { background: var(--red-soft); color: var(--red); }
.pill.warn { background: var(--yellow-soft); color: var(--yellow); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 14px 16px; min-width: 0; }
.card > :first-child { margin-top: 0; }
.failure { border-left: 4px solid var(--red); margin-top: 16px; }
.grid { display: grid; gap: 14px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); }
.plots { columns: 2 400px; column-gap: 14px; }
.plots figure { break-inside: avoid; margin-bottom: 14px; }
.claim p { margin: 8px 0 0; }
.claim .figures { color: var(--dim); font-size: 13.5px; font-variant-numeric: tabular-nums; }
figure { margin: 0; }
figcaption { font-weight: 600; margin-bottom: 8px; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: inherit !important; }
.scroll { overflow: auto; max-height: 640px; border: 1px solid var(--rule); border-radius: 8px;
  background: var(--card); width: fit-content; max-width: 100%; }
.scroll + .scroll { margin-top: 12px; }
table { border-collapse: collapse; font-size: 13.5px; }
th, td { padding: 6px 12px; text-align: left; vertical-align: top;
  border-top: 1px solid var(--rule); max-width: 620px; overflow-wrap: break-word; }
tr:first-child > th, tr:first-child > td { border-top: 0; }
thead th { position: sticky; top: 0; background: var(--card); box-shadow: inset 0 -1px var(--rule); }
th { font-weight: 600; color: var(--dim); white-space: nowrap; }
.stages { width: 100%; max-height: none; }
.stages table { width: 100%; }
.pairs { max-height: none; }
.part { display: inline-block; vertical-align: top; max-width: 100%; margin-right: 20px; }
.stages td.metrics { min-width: 240px; }
.stages td.place code { word-break: break-all; }
.metric { display: inline-block; margin-right: 14px; white-space: nowrap; }
.metric b { font-weight: 600; font-variant-numeric: tabular-nums; }
details { margin: 10px 0; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; padding: 0 16px; }
details details { background: transparent; }
details > :last-child:not(summary) { margin-bottom: 14px; }
summary { cursor: pointer; padding: 10px 0; font-weight: 600; overflow-wrap: anywhere; }
summary .dim { font-weight: 400; }
.text { white-space: pre-wrap; }
.sample { border-left: 3px solid var(--rule); padding: 2px 0 2px 12px; margin: 6px 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.sample.after { border-color: var(--green); }
footer { margin-top: 48px; color: var(--dim); font-size: 13px; }
@media (max-width: 640px) {
  main { padding: 16px 12px 48px; }
  h1 { font-size: 20px; }
  th, td { padding: 5px 9px; }
  .stages thead { display: none; }
  .stages tr { display: block; padding: 8px 4px; border-top: 1px solid var(--rule); }
  .stages tr:first-child { border-top: 0; }
  .stages td { display: inline-block; border: 0; padding: 2px 8px; max-width: 100%; }
  .stages td.metrics, .stages td.place { display: block; min-width: 0; }
  .stages td.num { text-align: left; }
}
@media print { details > * { display: block; } .scroll, pre { max-height: none; } }
"""
