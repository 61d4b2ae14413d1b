"""bars - panels of horizontal bars as one SVG: light and dark as its reader's screen is, no fonts, no scripts, figures as text.

draw(path, title, panels, note): panels are (title, [(label, kind, value, text)]); kind: "ours", "floor" or "peer".
"""
import re
from xml.sax.saxutils import escape

LABEL, BAR, ROW, TOP, COLUMN = 142, 250, 19, 34, 480
STYLE = """svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#1c1f24}.h{font-weight:600}.e{text-anchor:end}.n{fill:#565c66}
.ours{fill:#1f5fbf}.floor{fill:#8a919c}.peer{fill:#c9a06a}text.ours{fill:#1f5fbf;font-weight:600}
@media(prefers-color-scheme:dark){svg{background:#14161a}text{fill:#e8eaee}.n{fill:#a4abb8}
.ours{fill:#8ab4f8}.floor{fill:#8f97a3}.peer{fill:#a57f4d}text.ours{fill:#8ab4f8}}"""


def panel(title, rows, x, y):
    most = max((value for _, _, value, _ in rows), default=0) or 1
    lines = [f'<g transform="translate({x} {y})">', f'<text class="h" x="8" y="20">{escape(title)}</text>']
    for at, (label, kind, value, text) in enumerate(rows):
        top = TOP + ROW * at
        wide = BAR * value / most
        name = "e ours" if kind == "ours" else "e n"
        lines += [f'<text class="{name}" x="{LABEL}" y="{top + 12}">{escape(label)}</text>',
                  f'<rect class="{kind}" x="{LABEL + 8}" y="{top + 2}" width="{wide:.1f}" height="13" rx="1"/>',
                  f'<text x="{LABEL + 14 + wide:.1f}" y="{top + 12}">{escape(text)}</text>']
    return lines + ["</g>"]


def draw(path, title, panels, note=""):
    lines, y = [], 0
    for at in range(0, len(panels), 2):
        pair = panels[at:at + 2]
        for side, (name, rows) in enumerate(pair):
            lines += panel(name, rows, COLUMN * side, y)
        y += TOP + ROW * max(len(rows) for _, rows in pair) + 14
    if note:
        lines.append(f'<text class="n" x="8" y="{y + 8}">{escape(note)}</text>')
        y += 20
    width = COLUMN * min(2, len(panels))
    said = "; ".join(f"{name}: " + ", ".join(f"{label} {text}" for label, _, _, text in rows) for name, rows in panels)
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img" '
            'aria-labelledby="t d">', f'<title id="t">{escape(title)}</title>', f'<desc id="d">{escape(said)}.</desc>',
            f"<style>{STYLE}</style>"]
    with open(path, "w") as out:
        out.write("\n".join(head + lines + ["</svg>", ""]))


def kind_of(system):
    name = system.lower()
    return "ours" if name.startswith("baton") else "floor" if re.match("floor", name) else "peer"
