"""Constants of the P4 program for Python: include/define.p4 as the module define.py, which nobody writes by hand."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping

from tensorexpress.errors import ProgramError

_HEADING = '''"""The constants of include/define.p4, and the bits of its types; written by `tensorexpress p4 build`."""
'''

_COMMENT = re.compile(r"//\s?(.*)")
_CONSTANT = re.compile(r"const\s+(?:bit<\d+>|int<\d+>|int)\s+(\w+)\s*=\s*([^;]+);\s*(?://.*)?")
_TYPE = re.compile(r"typedef\s+(?:bit|int)<(\d+)>\s+(\w+);\s*(?://.*)?")
#: What a preprocessor reads, and blank lines.
_PASSED_OVER = re.compile(r"#.*|\s*")
#: The width in front of a number, as in 16w7 or 8s1.
_WIDTH = re.compile(r"\b\d+[ws](?=\d)")

_OPERATORS = {ast.LShift: operator.lshift, ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def module_text(source: str) -> str:
    """Return the text of a Python module with the constants and comments of a P4 source that has nothing else.

    >>> module_text("// The file.\\n// Ports.\\nconst bit<9> CPU = 0xff;\\ntypedef bit<3> queue_t;").splitlines()[2:]
    ['# Ports.', 'CPU = 255', 'QUEUE_T_BITS = 3']
    """
    return "\n".join([_HEADING, *_lines(source), ""])


def _lines(source: str) -> Iterator[str]:
    known: dict[str, int] = {}
    blank = False
    for number, line in enumerate(source.splitlines(), start=1):
        comment = _COMMENT.fullmatch(line)
        if comment and number == 1:
            continue  # what the file is; the module says so itself
        if comment:
            said = f"# {comment[1]}"
        elif constant := _CONSTANT.fullmatch(line):
            known[constant[1]] = _value(constant[2], known, number)
            said = f"{constant[1]} = {known[constant[1]]}"
        elif kind := _TYPE.fullmatch(line):
            said = f"{kind[2].upper()}_BITS = {kind[1]}"
        elif _PASSED_OVER.fullmatch(line):
            blank = bool(known) and not line
            continue
        else:
            raise ProgramError(f"define.p4 line {number} is {line!r}; accepted: constants, types of bits, comments")
        if blank:
            yield ""
        blank = False
        yield said


def _value(text: str, known: Mapping[str, int], number: int) -> int:
    """Return the value of an expression of numbers and earlier constants."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(int(found)):
                return found
            case ast.Name(name) if name in known:
                return known[name]
            case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
                return int(_OPERATORS[type(sign)](value(left), value(right)))
        raise SyntaxError

    try:
        return value(ast.parse(_WIDTH.sub("", text), mode="eval").body)
    except SyntaxError:
        accepted = "numbers as 0x5458 or 16w7, constants above, + - * <<"
        raise ProgramError(f"define.p4 line {number}: {text!r} is no number; accepted: {accepted}") from None
