"""A switch that runs: the forwarding process, and in this process its P4Runtime server.

with RunningSwitch(LoopSettings(ports), "127.0.0.1:0") as switch:
    print(switch.address)
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tensorexpress.errors import InputError, MachineError
from tensorexpress.switch.counted import Statistics
from tensorexpress.switch.link import DataLink, start_process
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.ports import SocketSpec

if TYPE_CHECKING:
    from tensorexpress.switch.p4runtime.listening import ServerTlsFiles
    from tensorexpress.switch.p4runtime.service import RuntimeServer


class RunningSwitch:
    """Starts both when it is made. The forwarding process ends with this one, however this one ends."""

    def __init__(
        self,
        settings: LoopSettings,
        grpc_address: str | None,
        *,
        device_id: int = 1,
        tls: ServerTlsFiles | None = None,
        insecure: bool = False,
    ):
        self._cpu_port = settings.cpu_port
        specs = (spec for spec, _ in settings.ports.values())
        descriptors = [spec.descriptor for spec in specs if isinstance(spec, SocketSpec)]
        self.data_path: DataLink = start_process(descriptors, settings.engine)
        self._server: RuntimeServer | None = None
        try:
            self.data_path.start(settings)
            if grpc_address is not None:
                self._server = _serve(
                    self.data_path,
                    grpc_address,
                    device_id=device_id,
                    cpu_port=settings.cpu_port,
                    tls=tls,
                    insecure=insecure,
                    engine=settings.engine,
                    memory=settings.memory,
                )
        except BaseException:
            self.data_path.close()
            raise
        self._notices = threading.Thread(target=self._pass_notices_on, name="notices", daemon=True)
        self._notices.start()

    @property
    def address(self) -> str | None:
        """Where P4Runtime is served, with the port that was really taken; None when it is not."""
        return self._server.address if self._server is not None else None

    def start_with(self, document: bytes, p4info_text: str | None = None, entries_text: str = "") -> None:
        """Run a program, with entries, until a controller sets another; ProgramError if it cannot be."""
        if self._server is not None:
            if p4info_text is None:
                raise InputError("P4Runtime cannot speak of a program without its P4Info; give it too, or serve none")
            self._server.service.start_with(p4info_text, document, entries_text)
            return
        self.data_path.load(document)
        if p4info_text is not None and entries_text:
            from tensorexpress.switch.p4runtime.entities import read_entries

            self.data_path.apply(read_entries(p4info_text, entries_text, document, cpu_port=self._cpu_port))

    def wait(self) -> None:
        """Return when the forwarding process has ended."""
        self._notices.join()

    def stop(self) -> Statistics | None:
        """End both; return the last counters, None when the forwarding process was gone already."""
        with self.data_path.ending():
            if self._server is not None:
                self._server.stop()
            return self.data_path.stop()

    def _pass_notices_on(self) -> None:
        for notice in self.data_path.notices():
            if self._server is not None:
                self._server.notify(notice)

    def __enter__(self) -> RunningSwitch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _serve(data_path: DataLink, address: str, **options: Any) -> RuntimeServer:
    try:
        from tensorexpress.switch.p4runtime.service import serve
    except ImportError as error:
        raise MachineError(
            f"P4Runtime needs {error.name}; pip install 'tensorexpress[p4]', or do without a controller (--no-grpc)"
        ) from None
    return serve(data_path, address, lost=data_path.lost, **options)
