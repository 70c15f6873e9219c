"""Render the report as one HTML file that loads nothing and that no name in the report can inject HTML into."""

import base64
import hashlib
import json
import re
from importlib.resources import files

from webhook.placement.shape import JsonObject

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


def render(report: JsonObject) -> str:
    """Return the page for a report, as `kubevirt-scheduler report -o json` prints it."""
    style, script = _read("css"), _read("js")
    # The hashes admit this style and this script. Everything else is blocked, including any request.
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "report": embedded_json(report)}
    # One pass: text such as {{script}} in the report stays as it is.
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], _read("html"))


def embedded_json(value: JsonObject) -> str:
    """Return JSON that can't end the script element around it: ASCII only, and without <, > and &."""
    encoded = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(suffix: str) -> str:
    return files(__package__).joinpath(f"fleet_page.{suffix}").read_text(encoding="utf-8")


def _digest(source: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}"
