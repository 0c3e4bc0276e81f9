"""Names: what jobs, scenarios, layers, hosts, switches, policies and interfaces may be called.

Names come out of files that others wrote, and go into lines of configuration, JSON, CSV, pictures and terminals. One
rule keeps them from being more than names in any of these: letters and digits of any script, spaces, and such signs as
none of those outputs gives a meaning to; the first is a letter, a digit or "_", so that no spreadsheet takes a name for
a formula.
"""

from __future__ import annotations

import re
import unicodedata

from tensorexpress.errors import InputError, shown

#: Longest name; the parameters of deep models have names of half of that.
LONGEST_NAME = 200

#: Signs in a name beside letters, marks on letters, and digits.
_SIGNS = " _.:/@+-=,()[]"

#: What is accepted, in words.
ACCEPTED = f"a name of 1 to {LONGEST_NAME} letters, digits, spaces and {_SIGNS.strip()}, the first a letter, digit or _"

#: What interfaces are called in practice; Linux takes 15 characters, nearly any.
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,14}")


def is_name(value: object) -> bool:
    r"""Whether a value can be the name of something.

    >>> [is_name(text) for text in ("conv1/weights:0", "size 2", "=1+1", "job\nNCCL_IB_TC=0", "<b>")]
    [True, True, False, False, False]
    """
    return (
        isinstance(value, str)
        and 1 <= len(value) <= LONGEST_NAME
        and (value[0] == "_" or _kind(value[0]) in "LN")
        and value[-1] != " "
        and all(character in _SIGNS or _kind(character) in "LNM" for character in value)
    )


def check_name(what: str, value: object, error: type[InputError] = InputError) -> str:
    """Return a name that is one; otherwise an error that calls it `what`."""
    if not is_name(value):
        raise error(f"{what} is {shown(value)}; accepted: {ACCEPTED}")
    return str(value)


def name_of_file(stem: str) -> str:
    """Return what something is called that has no name but its file's; what a name cannot have becomes "_".

    >>> name_of_file("two jobs"), name_of_file("$(reboot)")
    ('two jobs', '_(reboot)')
    """
    kept = "".join(each if each in _SIGNS or _kind(each) in "LNM" else "_" for each in stem).rstrip()[:LONGEST_NAME]
    return kept if is_name(kept) else f"_{kept}"[:LONGEST_NAME].rstrip()


def is_interface(name: str) -> bool:
    """Whether a text can be the name of a network interface, and is neither option nor path to a tool that gets it.

    >>> [is_interface(text) for text in ("eth0.7", "br-lan", "-batch", "..", "a b", "a/b", "x" * 16)]
    [True, True, False, False, False, False, False]
    """
    return _INTERFACE.fullmatch(name) is not None


def check_interface(name: str) -> str:
    """Return the name of an interface that can be one; otherwise an error."""
    if not is_interface(name):
        raise InputError(
            f"{shown(name)} is no name of an interface; accepted: at most 15 letters, digits and _.@+-, the first a "
            "letter, digit or _, such as eth0"
        )
    return name


def _kind(character: str) -> str:
    """Return the first letter of a character's Unicode category: L letters, M marks on letters, N digits."""
    return unicodedata.category(character)[0]
