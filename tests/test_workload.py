import doctest
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress import files, workload
from tensorexpress.errors import InputError, WorkloadError
from tensorexpress.files import write_atomic
from tensorexpress.workload import Layer, Workload, read_csv, write_csv

HEADER = "layer_index,numel,forward_ns,backward_ns"

times_ps = st.integers(0, 10**15)
layers = st.lists(st.tuples(st.integers(1, 10**12), times_ps, times_ps), min_size=1, max_size=20)


def costs(found: Workload) -> list[tuple[int, int, int]]:
    return [(layer.params, layer.forward_ps, layer.backward_ps) for layer in found.layers]


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "profile.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("module", [workload, files])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0


def test_tensor_bytes_follow_the_width_of_a_parameter():
    found = Workload("two", (Layer("a", 3, 0, 0), Layer("b", 5, 0, 0)), bytes_per_param=2)
    assert found.tensor_bytes == (6, 10)


@given(layers)
def test_a_workload_survives_its_csv_to_the_picosecond(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "w.csv"
    write_csv(Workload("any", tuple(Layer("x", *row) for row in rows)), path)
    assert costs(read_csv(path)) == rows


@given(layers)
def test_a_csv_that_was_written_is_written_again_byte_for_byte(tmp_path_factory, rows):
    directory = tmp_path_factory.mktemp("csv")
    write_csv(Workload("any", tuple(Layer("x", *row) for row in rows)), directory / "one.csv")
    write_csv(read_csv(directory / "one.csv"), directory / "two.csv")
    assert (directory / "one.csv").read_bytes() == (directory / "two.csv").read_bytes()


def test_the_written_format(tmp_path):
    write_csv(Workload("w", (Layer("a", 10, 1_000_000, 2_500), Layer("b", 7, 1, 0))), tmp_path / "w.csv")
    assert (tmp_path / "w.csv").read_text() == f"{HEADER}\n0,10,1000,2.5\n1,7,0.001,0\n"


def test_names_come_from_the_file_and_the_index(tmp_path):
    found = read_csv(written(tmp_path, f"{HEADER}\n0,10,1,2\n1,20,3,4\n"))
    assert found.name == "profile"
    assert [layer.name for layer in found.layers] == ["layer0", "layer1"]


@pytest.mark.parametrize(
    "content",
    [
        f"{HEADER}\n0,10,1.5,2\n",
        f"{HEADER}\n1,10,1.5,2\n",
        f"{HEADER}\n0,10,1.5,2",
        f"{HEADER}\r\n0,10,1.5,2\r\n\r\n",
        f"\ufeff{HEADER}\n0,10,1.5,2\n",
        "layer_index, numel, forward_ns, backward_ns\n0, 10, 1.5, 2.000\n",
        f"{HEADER}\n0,10,0.15e1,2e+0\n",
    ],
    ids=["plain", "from one", "no last newline", "windows", "byte-order mark", "spaces", "exponents"],
)
def test_usual_variants_are_read_alike(tmp_path, content):
    assert costs(read_csv(written(tmp_path, content))) == [(10, 1500, 2000)]


@pytest.mark.parametrize(
    ("content", "line", "found"),
    [
        ("", 1, "''"),
        ("0,10,1,2\n", 1, "0,10,1,2"),
        ("layer_index,numel,forward_ns\n0,10,1\n", 1, "layer_index,numel,forward_ns"),
        ("numel,layer_index,forward_ns,backward_ns\n0,10,1,2\n", 1, "numel,layer_index"),
        (f"{HEADER}\n", 2, "no layer"),
        (f"{HEADER}\n\n\n", 4, "no layer"),
        (f"{HEADER}\n0,10,1\n", 2, "3 of 4 columns"),
        (f"{HEADER}\n0,10,1,2,3\n", 2, "5 of 4 columns"),
        (f"{HEADER}\n0,10,1,2\n1,10,1", 3, "3 of 4 columns"),
        (f"{HEADER}\n0,10,1,2\n1,10,1,", 3, "backward_ns is ''"),
        (f"{HEADER}\n0,ten,1,2\n", 2, "numel is 'ten'"),
        (f"{HEADER}\n0,1.5,1,2\n", 2, "numel is '1.5'"),
        (f"{HEADER}\n0,0,1,2\n", 2, "numel is '0'"),
        (f"{HEADER}\n0,-3,1,2\n", 2, "numel is '-3'"),
        (f"{HEADER}\n0,1000000000001,1,2\n", 2, "numel is '1000000000001'"),
        (f"{HEADER}\n0,١,1,2\n", 2, "numel is '١'"),
        (f"{HEADER}\n0,10,-1,2\n", 2, "forward_ns is '-1'"),
        (f"{HEADER}\n0,10,nan,2\n", 2, "forward_ns is 'nan'"),
        (f"{HEADER}\n0,10,1,inf\n", 2, "backward_ns is 'inf'"),
        (f"{HEADER}\n0,10,1,1e13\n", 2, "backward_ns is '1e13'"),
        (f"{HEADER}\n0,10,1,1_0\n", 2, "backward_ns is '1_0'"),
        (f"{HEADER}\n0,10,1,2\n0,10,1,2\n", 3, "layer_index is '0'"),
        (f"{HEADER}\n0,10,1,2\n2,10,1,2\n", 3, "layer_index is '2'"),
        (f"{HEADER}\n1,10,1,2\n0,10,1,2\n", 3, "layer_index is '0'"),
        (f"{HEADER}\n5,10,1,2\n", 2, "layer_index is '5'"),
        (f"{HEADER}\nx,10,1,2\n", 2, "layer_index is 'x'"),
        (HEADER.encode() + b"\n0,10,1,2\n1,\xff,1,2\n", 3, "0xff"),
        (f"{HEADER}\n0,{'9' * 10_000},1,2\n", 2, "..."),
    ],
)
def test_bad_content_is_named_by_file_and_line(tmp_path, content, line, found):
    path = written(tmp_path, content)
    with pytest.raises(WorkloadError) as caught:
        read_csv(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert found in message
    assert "accepted: " in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("name", ["missing.csv", "", "nul\0.csv"])
def test_a_path_that_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(WorkloadError, match=r"cannot read .*; accepted: a CSV file"):
        read_csv(os.path.join(tmp_path, name))


@pytest.mark.parametrize("data", ["grün\n", b"\x00\xff", ""])
def test_write_atomic_writes_all_and_replaces(tmp_path, data):
    path = tmp_path / "out"
    path.write_text("old")
    write_atomic(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert os.listdir(tmp_path) == ["out"]


def test_a_written_file_has_the_mode_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    write_atomic(tmp_path / "atomic", "x")
    plain, atomic = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic"))
    assert atomic == plain


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_atomic(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "x"


def test_a_device_is_written_to_and_not_replaced():
    write_atomic(os.devnull, "x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


# A name too long fails only when the finished file is renamed.
@pytest.mark.parametrize("name", ["no/such/file", "file/below", "directory", "n" * 300, "nul\0"])
def test_a_failed_write_leaves_nothing_behind(tmp_path, name):
    (tmp_path / "file").write_text("old")
    (tmp_path / "directory").mkdir()
    with pytest.raises(InputError, match=r"^cannot write .*; give .*$"):
        write_atomic(os.path.join(tmp_path, name), "new")
    assert sorted(os.listdir(tmp_path)) == ["directory", "file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_not_writable_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"):
        write_atomic(tmp_path / "file", "x")
