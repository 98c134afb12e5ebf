"""The few messages of W&B's wire format that are read here, declared for the protobuf library.

W&B ships its classes as ``wandb.proto``, but importing them imports all of ``wandb`` (about a second in every worker,
and its exit hooks), and they decode summaries too, which are half of a file. History items are declared as undecoded
bytes, so that a number can be read straight from the bytes of its JSON. A test holds all this against W&B's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

MESSAGES: Final[Mapping[str, str]] = {
    "Record": "history=2:HistoryRecord config=5:ConfigRecord stats=7:StatsRecord run=17:RunRecord "
    "exit=18:RunExitRecord environment=26:EnvironmentRecord",
    "HistoryRecord": "item=1:bytes* step=2:HistoryStep",
    "HistoryItem": "key=1:bytes nested_key=2:bytes* value_json=16:bytes",
    "HistoryStep": "num=1:int64",
    "ConfigRecord": "update=1:ConfigItem* remove=2:ConfigItem*",
    "ConfigItem": "key=1:string nested_key=2:string* value_json=16:string",
    "StatsRecord": "timestamp=2:Timestamp",
    "RunRecord": "run_id=1:string entity=2:string project=3:string config=4:ConfigRecord run_group=6:string "
    "job_type=7:string display_name=8:string tags=10:string* host=13:string start_time=17:Timestamp "
    "git=21:GitRepoRecord",
    "RunExitRecord": "exit_code=1:int32",
    "EnvironmentRecord": "started_at=3:Timestamp args=5:string* program=6:string git=9:GitRepoRecord host=12:string "
    "username=13:string",
    "GitRepoRecord": "commit=2:string",
    "Timestamp": "seconds=1:int64 nanos=2:int32",
}
"""The part of W&B's wire format that is read here: message to ``name=number:type`` (``*``: repeated).

The number and kind of a field never change once released; ``bytes`` reads what W&B declares as a string or a message.
"""

CONFIG, HISTORY, STATS, RUN, EXIT, PREEMPTING, ENVIRONMENT = 5, 2, 7, 17, 18, 23, 26
"""Field numbers of a record's content."""
_ENVELOPE: Final = frozenset({1, 16, 19, 200})
"""Fields of a record beside its content: number, control, uuid, info."""


def record_kind(data: bytes) -> int:
    """The field number of a record's content, told from its first bytes; 0 where they are no record's."""
    place = 0
    try:
        while True:
            tag, place = _varint(data, place)
            if tag >> 3 not in _ENVELOPE:
                return tag >> 3
            size, place = _varint(data, place)
            if tag & 7 == 2:
                place += size
            elif tag & 7:
                return 0
    except IndexError:
        return 0


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            return 0, len(data)


@cache
def message_class(name: str) -> Any:
    """The class of one of `MESSAGES`, made by the protobuf library."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    kinds = {
        "int64": field.TYPE_INT64,
        "int32": field.TYPE_INT32,
        "string": field.TYPE_STRING,
        "bytes": field.TYPE_BYTES,
    }
    file = descriptor_pb2.FileDescriptorProto(name="pth_tracker_wandb.proto", package="pth_tracker_wandb")
    file.syntax = "proto3"
    for message, fields in MESSAGES.items():
        declared = file.message_type.add(name=message)
        for text in fields.split():
            label, _, rest = text.partition("=")
            number, _, kind = rest.partition(":")
            repeated, kind = kind.endswith("*"), kind.removesuffix("*")
            own = declared.field.add(name=label, number=int(number))
            own.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            own.type = kinds.get(kind, field.TYPE_MESSAGE)
            if kind not in kinds:
                own.type_name = f".pth_tracker_wandb.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pth_tracker_wandb.{name}"))
