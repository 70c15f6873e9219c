"""Render the report as one HTML file that loads nothing and that no name in the report can inject HTML into."""

import base64
import hashlib
import json
import re
from importlib.resources import files

from webhook.placement.objects.fields import JsonObject

SCRIPTS = ("data.js", "header.js", "nodes.js", "matrix.js", "page.js")

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def render(report: JsonObject, interval: int = 0) -> str:
    """Return the page for a report, as `kubevirt-scheduler report -o json` prints it.

    With an interval, the page reads report.json from its server every so many seconds.
    """
    style = _read("page.css")
    scripts = [_read(name) for name in SCRIPTS]
    # The hashes admit this style and these scripts. Everything else is blocked, including any request of a file.
    connect = "'self'" if interval else "'none'"
    policy = (
        f"default-src 'none'; style-src {_source(style)}; script-src {' '.join(map(_source, scripts))}; "
        f"base-uri 'none'; form-action 'none'; connect-src {connect}"
    )
    elements = "\n".join(f"<script>{script}</script>" for script in scripts)
    parts = {"policy": policy, "style": style, "scripts": elements, "report": embedded_json(report)}
    parts["interval"] = str(interval)
    # One pass: text such as {{scripts}} in the report stays as it is.
    return _PLACEHOLDER.sub(lambda match: parts[match[1]], _read("page.html"))


def embedded_json(value: JsonObject) -> str:
    """Return JSON that can't end the script element around it: ASCII only, and without <, > and &."""
    encoded = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _source(content: str) -> str:
    """Return the source expression that admits this content in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
