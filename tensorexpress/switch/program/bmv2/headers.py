"""Reads the headers of a program: their types, stacks and unions, and references to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tensorexpress.switch.program.bmv2.document import JsonNode
from tensorexpress.switch.program.bmv2.values import (
    VALIDITY,
    FieldInfo,
    FieldRef,
    HeaderInfo,
    HeaderType,
    LastField,
    UnionInfo,
)
from tensorexpress.switch.program.budgets import LARGEST_HEADER, LARGEST_STACK, beyond


class HeaderReader:
    """All headers, stacks and unions of a document, by name."""

    def __init__(self, root: JsonNode):
        self._types = {name: _header_type(node) for name, node in root["header_types"].distinct()}
        self._sizes = {name: sum(item.bits for item in kind.fields) // 8 for name, kind in self._types.items()}
        self._header_names: dict[int, str] = {}
        self.headers: dict[str, HeaderInfo] = {}
        for (name, node), (number, _) in _named_and_numbered(root["headers"]):
            self._header_names[number] = name
            self.headers[name] = self._header(name, node)
        self.stack_types: dict[str, str] = {}
        self.stacks = self._stacks(root.get("header_stacks", []), "header_type", "header_ids", self._header_names)
        self._union_names: dict[int, str] = {}
        self.unions = self._read_unions(root)
        self.union_stacks = self._stacks(
            root.get("header_union_stacks", []), "union_type", "header_union_ids", self._union_names
        )

    def _header(self, name: str, node: JsonNode) -> HeaderInfo:
        type_name = node["header_type"].text()
        if type_name not in self._types:
            raise node.error(f"is of type {type_name!r}, which the program does not have")
        header = HeaderInfo(name, self._types[type_name], node["metadata"].flag())
        if self._sizes[type_name] > LARGEST_HEADER and not header.metadata:
            raise beyond(f"header {name!r}", self._sizes[type_name], LARGEST_HEADER, "bytes")
        return header

    def _read_unions(self, root: JsonNode) -> dict[str, UnionInfo]:
        types = {name: _union_type(node) for name, node in root.get("header_union_types", []).distinct()}
        unions = {}
        for (name, node), (number, _) in _named_and_numbered(root.get("header_unions", [])):
            kind = node["union_type"].text()
            if kind not in types:
                raise node.error(f"is of type {kind!r}, which the program does not have")
            self._union_names[number] = name
            members, member_types = types[kind]
            unions[name] = UnionInfo(name, kind, _by_id(node["header_ids"], self._header_names), members, member_types)
        return unions

    def _stacks(self, nodes: JsonNode, type_key: str, ids: str, names: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
        """Return the elements of stacks, which are headers or unions with these ids."""
        stacks = {}
        for name, node in nodes.distinct():
            elements = _by_id(node[ids], names)
            if len(elements) > LARGEST_STACK:
                raise beyond(f"header stack {name!r}", len(elements), LARGEST_STACK, "elements")
            size = node.get("size", len(elements)).number()
            if len(elements) != size:
                raise node.error(f"has {len(elements)} elements and the size {size}")
            self.stack_types[name] = node[type_key].text()
            stacks[name] = elements
        return stacks

    def header(self, node: JsonNode) -> str:
        """Return the name of a header that is there."""
        name = node.text()
        if name not in self.headers:
            raise node.error(f"refers to {name!r}, a header that the program does not have")
        return name

    def field_ref(self, node: JsonNode) -> FieldRef:
        """Return a field that is there."""
        reference = FieldRef(self.header(node[0]), node[1].text())
        if self.headers[reference.header].type.field(reference.field) is None:
            raise node.error(f"refers to {reference.field!r}, which {reference.header!r} does not have")
        return reference

    def field(self, reference: FieldRef) -> FieldInfo:
        """Return what is known of a field that is there."""
        return self.headers[reference.header].type.by_name[reference.field]

    def last_field(self, reference: LastField, node: JsonNode) -> FieldInfo:
        """Return what is known of a field of a stack's last element; an error of the node if it is not there."""
        union = None
        if reference.member is None:
            header = next(iter(self.stacks.get(reference.stack, ())), None)
        else:
            union = self.unions.get(next(iter(self.union_stacks.get(reference.stack, ())), ""))
            members = dict(zip(union.members, union.headers, strict=False)) if union else {}
            header = members.get(reference.member)
        found = self.headers[header].type.field(reference.field) if header else None
        if found is None:
            raise node.error("refers to a field of a stack that the program does not have")
        return found


def _named_and_numbered(nodes: JsonNode) -> Iterator[tuple[tuple[str, JsonNode], tuple[int, JsonNode]]]:
    """Yield the items of a list with their names, and with their numbers; no two have one name or number."""
    return zip(nodes.distinct(), nodes.distinct("id"), strict=True)


def _by_id(ids: JsonNode, names: Mapping[int, str]) -> tuple[str, ...]:
    for node in ids:
        if node.number() not in names:
            raise node.error(f"is {node.value}, an id that nothing has")
    return tuple(names[node.number()] for node in ids)


def _union_type(node: JsonNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a union's members, and their types."""
    members = {name: item[1].text() for name, item in node["headers"].distinct(0)}
    return tuple(members), tuple(members.values())


def _header_type(node: JsonNode) -> HeaderType:
    name = node["name"].text()
    fixed_bits = sum(item[1].width() for item in node["fields"] if item[1].value != "*")
    fields = []
    for field, item in node["fields"].distinct(0):
        signed = len(item.value) > 2 and item[2].flag()
        if item[1].value == "*":
            longest = node["max_length"].at_most(LARGEST_HEADER, "bytes") * 8 - fixed_bits
            fields.append(FieldInfo(field, longest, signed, varbit=True))
        else:
            fields.append(FieldInfo(field, item[1].width(), signed))
        if fields[-1].name == VALIDITY:
            raise item.error(f"is a field named {VALIDITY!r}, which stands for the header's validity")
    return HeaderType(name, tuple(fields), {found.name: found for found in fields})
