"""Which pipeline runs, and which one is saved and not committed."""

from __future__ import annotations

from dataclasses import dataclass

from tensorexpress.switch.p4runtime.pipeline_config import PipelineConfig
from tensorexpress.switch.p4runtime.status import Code, Refused
from tensorexpress.switch.p4runtime.store import Recorder, Store


@dataclass(frozen=True)
class RuntimePipeline:
    """A config and its entities, and what the entities would have done to a data path before it ran."""

    config: PipelineConfig
    store: Store
    recorder: Recorder


class Pipelines:
    """The two pipelines that a device may have; whoever uses them holds the device's lock."""

    def __init__(self) -> None:
        self.running: RuntimePipeline | None = None
        self.saved: RuntimePipeline | None = None

    @property
    def newest(self) -> RuntimePipeline | None:
        """The pipeline that reads and writes refer to."""
        return self.saved or self.running

    def current(self) -> RuntimePipeline:
        """Return the pipeline that reads and writes refer to; Refused where there is none."""
        if self.newest is None:
            raise Refused(Code.FAILED_PRECONDITION, "no pipeline; send SetForwardingPipelineConfig first")
        return self.newest

    def run(self, pipeline: RuntimePipeline) -> None:
        """Note that a pipeline runs; there is no saved one then."""
        self.running, self.saved = pipeline, None
