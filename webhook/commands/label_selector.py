"""Parse a label selector in the syntax of `kubectl -l`: `app=db,tier!=web,zone in (a,b),!old`."""

import re

import click

from webhook.placement.objects.fields import JsonObject

_KEY = r"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9]?[-A-Za-z0-9_.]*"
_EQUALITY = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})")
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_EXISTENCE = re.compile(rf"(?P<operator>!?)\s*(?P<key>{_KEY})")
_COMMA = re.compile(r",(?![^(]*\))")  # not inside parentheses


def parse_selector(selector: str) -> JsonObject:
    """Return the label selector as Kubernetes stores it. Raises BadParameter."""
    parts = [part.strip() for part in _COMMA.split(selector)]
    if not any(parts):  # an unset variable of a script, which must not select all VMs
        raise click.BadParameter("empty label selector; to select all VMs, omit the option", param_hint="-l")
    return {"matchExpressions": [_requirement(part) for part in parts if part]}


def _requirement(part: str) -> JsonObject:
    if found := _EQUALITY.fullmatch(part):
        operator = "NotIn" if found["operator"] == "!=" else "In"
        return {"key": found["key"], "operator": operator, "values": [found["value"]]}
    if found := _SET.fullmatch(part):
        values = [value.strip() for value in found["values"].split(",")]
        return {"key": found["key"], "operator": "In" if found["operator"] == "in" else "NotIn", "values": values}
    if found := _EXISTENCE.fullmatch(part):
        return {"key": found["key"], "operator": "DoesNotExist" if found["operator"] else "Exists"}
    raise click.BadParameter(f"invalid label selector {part!r}; example: app=db,tier!=web", param_hint="-l")
