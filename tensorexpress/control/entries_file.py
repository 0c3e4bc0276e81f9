"""What a plan puts on a switch as a file: a P4Runtime WriteRequest in text form, for a switch that is asked later."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import text_format

from tensorexpress.control.deploy import PlannedDeployment
from tensorexpress.control.entities import initial_entities
from tensorexpress.control.reconcile import difference, steps
from tensorexpress.p4runtime_messages import p4runtime_pb2


def entries_text(deployment: PlannedDeployment, switch: str) -> str:
    """Return the updates that a switch needs that has just begun to run the program, each behind a line for people."""
    return "\n".join(_updates(deployment, switch))


def _updates(deployment: PlannedDeployment, switch: str) -> Iterator[str]:
    schema, wanted = deployment.schema, deployment.wanted[switch]
    for step in steps(difference(wanted, initial_entities(schema, wanted)), schema):
        for kind, entity in step:
            request = p4runtime_pb2.WriteRequest()
            request.updates.add(type=kind, entity=entity.encode(schema))
            yield f"# {entity.place} {entity.show(schema)}\n{text_format.MessageToString(request)}"
