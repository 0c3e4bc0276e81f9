import doctest
import os
import stat
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorexpress import files, workload
from tensorexpress.errors import InputError, WorkloadError
from tensorexpress.files import write_atomic
from tensorexpress.workload import (
    DTYPE_BYTES,
    FIRST_BUCKET_BYTES,
    Layer,
    Workload,
    at_throughput,
    compressed,
    in_buckets,
    read_csv,
    write_csv,
)

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


@given(
    st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20),
    st.integers(1, 10**12),
)
def test_buckets_fill_up_from_the_last_layer_and_close_when_full(drawn, bucket_bytes):
    whole = Workload("random", tuple(Layer(f"l{i}", *layer) for i, layer in enumerate(drawn)))
    bucketed = in_buckets(whole, bucket_bytes)
    assert [sum(column) for column in zip(*costs(bucketed), strict=True)] == [
        sum(column) for column in zip(*costs(whole), strict=True)
    ]
    first, *others = bucketed.tensor_bytes[::-1]
    # All but the last, at the front of the model, are full; and none was full before its last layer came.
    limits = [min(FIRST_BUCKET_BYTES, bucket_bytes), *[bucket_bytes] * len(others)]
    assert all(size >= limit for size, limit in list(zip([first, *others], limits, strict=True))[:-1])
    sizes, at = list(whole.tensor_bytes[::-1]), 0
    for size, limit in zip([first, *others], limits, strict=True):
        held = []
        while sum(held) < size:
            held.append(sizes[at])
            at += 1
        assert sum(held) == size
        assert sum(held[:-1]) < limit
    assert in_buckets(bucketed, bucket_bytes) == bucketed


def test_a_bucket_is_named_by_its_ends_however_long_their_names_are():
    long = Workload("long", (Layer("a" * 200, 1, 0, 0), Layer("b" * 200, 1, 0, 0)))
    (bucket,) = in_buckets(long, 100).layers
    assert bucket.name == f"{'a' * 99}..{'b' * 99}"


def test_tensor_bytes_follow_the_width_of_a_parameter():
    found = Workload("two", (Layer("a", 3, 0, 0), Layer("b", 5, 0, 0)), dtype="bf16")
    assert found.tensor_bytes == (6, 10)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtype": "int8"}, "mine: unknown dtype 'int8'"),
        ({"batch": -1}, "mine has a batch of -1; accepted: 0 to 1000000"),
        ({"compression": 0.5}, "mine has a compression of 0.5; accepted: 1 to 10000"),
        ({"compression": float("nan")}, "mine has a compression of nan"),
        ({"compression_rate_bps": -1}, "mine has a compression rate of -1; accepted: 0 to"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(WorkloadError, match=message):
        Workload("mine", (Layer("a", 1, 1, 1),), **values)


@given(layers, st.integers(1, 10_000), st.floats(0.01, 10**5))
def test_a_throughput_scales_all_times_alike(rows, batch, samples_per_second):
    before = Workload("any", tuple(Layer("x", *row) for row in rows), batch=batch)
    assume(before.compute_ps)
    wanted_ps = batch * 10**12 / samples_per_second
    assume(wanted_ps <= 10**16)
    after = at_throughput(before, samples_per_second)
    assert after.compute_ps == pytest.approx(wanted_ps, abs=len(rows) + 1, rel=1e-9)
    ratio = wanted_ps / before.compute_ps
    for old, new in zip(before.layers, after.layers, strict=True):
        assert new.params == old.params
        assert new.forward_ps == pytest.approx(old.forward_ps * ratio, abs=1, rel=1e-9)


@pytest.mark.parametrize(
    ("workload", "samples_per_second", "message"),
    [
        (Workload("none", (Layer("a", 1, 1, 1),)), 10, "none has no batch; accepted: with the samples"),
        (Workload("idle", (Layer("a", 1, 0, 0),), batch=1), 10, "idle computes for no time at all"),
        (Workload("slow", (Layer("a", 1, 1, 1),), batch=1), 1e-300, "found 1e-300 samples/s; accepted: 1e-06 to 1e"),
        (Workload("slow", (Layer("a", 1, 1, 1),), batch=1), 0.00001, "layer a computes for"),
    ],
)
def test_a_throughput_that_makes_no_sense_is_refused(workload, samples_per_second, message):
    with pytest.raises(WorkloadError, match=message):
        at_throughput(workload, samples_per_second)


@given(layers, st.floats(1, 1000), st.sampled_from(sorted(DTYPE_BYTES)))
def test_compression_divides_the_bytes_and_leaves_none_empty(rows, ratio, dtype):
    plain = Workload("any", tuple(Layer("x", *row) for row in rows), dtype)
    small = compressed(plain, ratio, 0)
    assert small.layers == plain.layers
    for before, after in zip(plain.tensor_bytes, small.tensor_bytes, strict=True):
        assert after == pytest.approx(before / ratio, abs=1)
        assert 1 <= after <= before


def test_compressing_takes_a_workers_time_by_the_uncompressed_bytes():
    plain = Workload("one", (Layer("a", 1000, 10, 20),), "fp16", batch=4)
    small = compressed(plain, 8, 16 * 10**9)
    # 2,000 bytes at 16 Gbit/s are a microsecond, once after backward and once before forward.
    assert small == Workload("one", (Layer("a", 1000, 10 + 10**6, 20 + 10**6),), "fp16", 4, 8.0, 16 * 10**9)
    assert small.tensor_bytes == (250,)


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
