"""Resolve plain YAML scalars as Kubernetes does: a date and 12:30 are strings, `y` and `on` are booleans.

Source: sigs.k8s.io/yaml/goyaml.v2/resolve.go, which is YAML 1.1 without dates and base 60.
"""

import math
import re
from collections.abc import Callable
from typing import Any

STRING, NULL, BOOL, INT, FLOAT, MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("str", "null", "bool", "int", "float", "merge")
)

_TRUE = "y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON"
_FALSE = "n|N|no|No|NO|false|False|FALSE|off|Off|OFF"
_NUMBERS = "-+.0123456789"

# Tag, pattern of the whole scalar, and its possible first characters. A scalar without a match is a string.
SCALAR_PATTERNS: tuple[tuple[str, str, list[str]], ...] = (
    (NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (BOOL, f"{_TRUE}|{_FALSE}", list("yYnNtTfFoO")),
    (INT, r"[-+]?(?:0[bB][01]+|0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[0-7_]*|[1-9][0-9_]*)", list(_NUMBERS)),
    (FLOAT, r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?", list(_NUMBERS)),
    (FLOAT, r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list(_NUMBERS)),
    (MERGE, "<<", ["<"]),
)


def _integer(digits: str) -> int | None:
    try:
        return int(re.sub(r"^([-+]?)0(?=[0-7]+$)", r"\g<1>0o", digits), 0)
    except ValueError:
        return None


def _number(scalar: str) -> int | float | str:
    digits = scalar.replace("_", "")
    integer = _integer(digits)
    if integer is not None and -(2**63) <= integer < 2**64:
        return integer
    number = float(digits)
    # 12e4567, which overflows to infinity, stays a string: a short commit hash can look like this.
    return number if math.isfinite(number) else scalar


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    STRING: str,
    NULL: lambda _: None,
    BOOL: _TRUE.split("|").__contains__,
    INT: _number,
    FLOAT: _number,
    MERGE: str,
}


def value_of(tag: str, scalar: str) -> Any:
    """Return the value of a scalar with this tag. Raises ValueError for a number that JSON can't hold."""
    return _CONVERTERS[tag](scalar)
