"""Reads the JSON that p4c writes for simple_switch, checks what it refers to, and makes frozen values of it.

values.py                                     what a program says
document.py                                   JSON whose every complaint names the place
reader.py                                     the whole document, in the order in which its parts refer to each other
headers.py  expressions.py  parsers.py        one reader for each part
controls.py  externs.py
"""
