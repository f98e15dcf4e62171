"""Messages of Chakra execution traces, built at run time from the format's field numbers.

Source: mlcommons/chakra ``schema/protobuf/et_def.proto`` (package ChakraProtoMsg). Only the fields that a generated
trace needs are declared; a reader of the whole schema sees the others at their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, proto

PACKAGE: Final = "ChakraProtoMsg"
COMP_NODE: Final = 4
SEND_NODE: Final = 5
RECV_NODE: Final = 6
COLL_NODE: Final = 7
COLLECTIVES: Final[Mapping[str, int]] = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}

_FIELDS: Final[Mapping[str, tuple[tuple[str, int, str, bool], ...]]] = {
    # name, number, type, repeated
    "AttributeProto": (
        ("name", 1, "string", False),
        ("int32_val", 7, "int32", False),
        ("int64_val", 9, "int64", False),
        ("uint64_val", 13, "uint64", False),
        ("bool_val", 27, "bool", False),
        ("string_val", 29, "string", False),
    ),
    "GlobalMetadata": (("version", 1, "string", False), ("attr", 2, "AttributeProto", True)),
    "Node": (
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "int32", False),  # an enum in the schema: the same on the wire
        ("ctrl_deps", 4, "uint64", True),
        ("data_deps", 5, "uint64", True),
        ("duration_micros", 7, "uint64", False),
        ("attr", 10, "AttributeProto", True),
    ),
}


def _classes() -> Mapping[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="scaleacross_chakra.proto", package=PACKAGE, syntax="proto3")
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        if message == "AttributeProto":
            made.oneof_decl.add(name="value")
        for name, number, kind, repeated in fields:
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            one = made.field.add(name=name, number=number, label=label)
            if kind in _FIELDS:
                one.type, one.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
            else:
                one.type = getattr(field, f"TYPE_{kind.upper()}")
            if name.endswith("_val"):
                one.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _FIELDS}


CLASSES: Final = _classes()
"""The message classes ``Node``, ``AttributeProto`` and ``GlobalMetadata``."""


def delimited(messages: Iterable[Any]) -> bytes:
    """Return the messages, each after its length as a varint: the layout of an .et file."""
    out = BytesIO()
    for message in messages:
        proto.serialize_length_prefixed(message, out)
    return out.getvalue()


def attributes(**values: bool | int | str) -> Iterator[Any]:
    """Yield attributes typed as in generated traces: sizes unsigned, collective kinds 64 bits, ranks and tags 32."""
    for name, value in values.items():
        if isinstance(value, bool):
            yield CLASSES["AttributeProto"](name=name, bool_val=value)
        elif isinstance(value, str):
            yield CLASSES["AttributeProto"](name=name, string_val=value)
        elif name == "comm_size":
            yield CLASSES["AttributeProto"](name=name, uint64_val=value)
        elif name == "comm_type":
            yield CLASSES["AttributeProto"](name=name, int64_val=value)
        else:
            yield CLASSES["AttributeProto"](name=name, int32_val=value)
