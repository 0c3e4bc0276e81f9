"""Blocks of memory in machine code, each of which is freed when nobody holds it any more, or all of them at once.

Those of one owner are a list that begins with a word of the owner's. A block is its address; 0 stands for none, whose
content is somebody else's and stays.
"""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.switch.native.machine import allocate, free, words

#: How many hold it, the next block of the list, and the address of the word that leads to this one.
_HOLDERS, _AFTER, _LED_TO_FROM = range(3)

_WORD_BYTES = 8

#: Where its content begins: as far on as memory is aligned.
CONTENT = 32


@compiled
def new_block(first: int, size: int) -> int:
    """Return a block for so many bytes, with one holder; `first` is the address of the owner's word. 0: no memory."""
    block = allocate(CONTENT + size)
    if block:
        b, owner = words(block), words(first)
        b[_HOLDERS], b[_AFTER], b[_LED_TO_FROM] = 1, owner[0], first
        if owner[0]:
            words(owner[0])[_LED_TO_FROM] = block + _WORD_BYTES * _AFTER
        owner[0] = block
    return block


@compiled
def hold(block: int) -> None:
    """Have one holder more."""
    if block:
        words(block)[_HOLDERS] += 1


@compiled
def let_go(block: int) -> None:
    """Have one holder less; the last one frees it."""
    if block:
        b = words(block)
        b[_HOLDERS] -= 1
        if b[_HOLDERS] == 0:
            words(b[_LED_TO_FROM])[0] = b[_AFTER]
            if b[_AFTER]:
                words(b[_AFTER])[_LED_TO_FROM] = b[_LED_TO_FROM]
            free(block)


@compiled
def let_all_go(first: int) -> None:
    """Free all blocks of an owner, whoever holds them."""
    while words(first)[0]:
        words(words(first)[0])[_HOLDERS] = 1
        let_go(words(first)[0])
