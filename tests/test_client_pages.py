"""The pages for users of other tools: all that stands there is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import DOCS, run_blocks
from support.thorough import rest


@rest()
def test_the_page_of_p4runtime_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("p4runtime_sh.shell", reason="p4runtime-shell is not installed (the extra `shell`)")
    from tensorexpress.switch.device import Switch
    from tensorexpress.switch.p4runtime.service import serve

    monkeypatch.chdir(tmp_path)
    switch = Switch(lambda port, frame, time_ps: None, lambda notice: None, cpu_port=255)
    with serve(switch, "127.0.0.1:0", cpu_port=255) as server:
        page = (DOCS / "p4runtime-shell.md").read_text().replace("127.0.0.1:9559", server.address)
        assert run_blocks(page) == 1


def test_the_page_of_scapy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scapy.packet", reason="scapy is not installed (the extra `scapy`)")
    monkeypatch.chdir(tmp_path)
    run_blocks((DOCS / "scapy.md").read_text())
    assert (tmp_path / "decoded.json").is_file()
