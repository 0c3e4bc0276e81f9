"""`tensorexpress import`: files of other tools, written here in their forms, give the layers that they tell."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.foreign_files import EXPECTED, LAYERS, TEXT, Profile, packed, profile
from support.pages import DOCS, run_blocks

from tensorexpress.cli import main
from tensorexpress.errors import InputError, WorkloadError
from tensorexpress.foreign.imported import Imported, Part, imported
from tensorexpress.foreign.recognise import read_foreign
from tensorexpress.workload import read_csv, write_csv

ROOT = Path(__file__).parents[1]


def written(directory: Path, content: str | bytes, name: str = "file") -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def costs(found: Imported) -> list[tuple[str, int, int, int]]:
    return [(layer.name, layer.params, layer.forward_ps, layer.backward_ps) for layer in found.workload.layers]


def refusal(directory: Path, content: str | bytes, **choices: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_foreign(written(directory, content), **choices)
    return str(caught.value)


def test_a_text_workload_of_astra_sim(tmp_path: Path) -> None:
    found = read_foreign(written(tmp_path, TEXT, "small.txt"), unit="ns")
    # With DATA, a gradient is ready before that of the input is computed, which is what the next layer waits for.
    assert costs(found) == [
        ("conv1", 224, 120_000, 260_000),
        ("norm", 16, 30_000, 45_000),
        ("fc", 5130, 80_000, 150_000),
    ]
    assert found.workload.name == "small"
    assert (found.iterations, found.iteration_ps) == (1, 685_000 + 6_000)


def test_kinds_that_compute_the_input_gradient_first(tmp_path: Path) -> None:
    text = TEXT.replace("DATA", "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 checkpoints: 0", 1)
    found = read_foreign(written(tmp_path, text), unit="us")
    assert [layer.backward_ps for layer in found.workload.layers] == [250_000_000, 30_000_000, 175_000_000]


def test_bytes_are_parameters_of_the_type_that_is_given(tmp_path: Path) -> None:
    found = read_foreign(written(tmp_path, TEXT), unit="ns", dtype="bf16")
    assert [layer.params for layer in found.workload.layers] == [448, 32, 10260]
    assert sum(found.workload.tensor_bytes) == 896 + 64 + 20520


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "conv1\t-1\t120\tNONE\t0",
            "conv1\t-1\t120\tALLGATHER\t64",
            ":3: layer conv1 has ALLGATHER of 64 bytes in the forward",
        ),
        (
            "10\tNONE\t0\t20",
            "10\tALLREDUCE\t8\t20",
            ":4: layer norm has ALLREDUCE of 8 bytes in the gradient of its input",
        ),
        (
            "ALLREDUCE\t20520",
            "REDUCESCATTER\t20520",
            ":5: layer fc has REDUCESCATTER of 20520 bytes in the gradient of its w",
        ),
        (
            "DATA",
            "HYBRID_TRANSFORMER model_parallel_NPU_group: 8",
            ":1: model_parallel_NPU_group: 8: workers share every",
        ),
        ("DATA", "HYBRID_TRANSFORMER pp: 2", ":1: pp: 2: workers share the layers in a pipeline"),
        ("\t3\n", "\t3\tMODEL\n", ":3: layer 'conv1' is of kind MODEL"),
        ("DATA", "MICRO", ":1: MICRO is a benchmark"),
        ("DATA", "HYBRID_TRANSFORMER_FWD_IN_BCKWD checkpoints: 2 0 1", "computed a second time"),
        ("\n3\n", "\n4\n", "has 3 rows; accepted: 4"),
        ("\t120\t", "\t-120\t", "has '-120' for a time or size"),
        ("\t120\t", "\tnan\t", "has 'nan' for a time or size"),
        ("\t120\t", "\t" + "9" * 15 + "\t", "computes for"),
        ("\t896\t", "\t897\t", ":3: 897 bytes are no whole number of fp32 parameters"),
        ("ALLREDUCE\t64\t1\n", "ALLREDUCE\t64\n", ":4: "),
    ],
)
def test_a_text_that_is_wrong_or_not_data_parallel_is_refused_by_name(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert said in refusal(tmp_path, TEXT.replace(old, new, 1), unit="us")


def test_a_text_needs_a_unit_and_others_refuse_one(tmp_path: Path) -> None:
    assert "give --unit" in refusal(tmp_path, TEXT)
    assert "which says it; leave it out" in refusal(tmp_path, profile(), unit="us")
    assert "which says it; leave it out" in refusal(tmp_path, profile(), dtype="bf16")


def test_layers_without_parameters_are_a_part_of_the_one_before(tmp_path: Path) -> None:
    rows = [Part("input", 0, 1, 2), Part("a", 5, 10, 20), Part("relu", 0, 100, 200), Part("a", 6, 1000, 2000)]
    found = imported("w", "test", rows, dtype="fp32", iterations=1, iteration_ps=6666, notes=[])
    assert costs(found) == [("a", 5, 111, 222), ("a:2", 6, 1000, 2000)]
    assert found.notes == ("2 layers without parameters: computed as a part of the layer before",)
    assert found.explained == pytest.approx(0.5)


@pytest.mark.parametrize("launch_us", [None, 2.0], ids=["cpu", "gpu"])
def test_a_profile_gives_layers_by_what_used_them(tmp_path: Path, launch_us: float | None) -> None:
    found = read_foreign(written(tmp_path, profile(steps=3, launch_us=launch_us), "run.pt.trace.json"))
    # On the GPU, kernels are launched long before they run: only their own times are right.
    assert costs(found) == EXPECTED
    assert found.iterations == 3
    assert found.workload.name == "run"
    assert ("a GPU" in found.source) == (launch_us is not None)


def test_how_much_of_a_step_a_profile_explains(tmp_path: Path) -> None:
    found = read_foreign(written(tmp_path, profile(steps=1)))
    compute_us = sum(forward + backward for _, _, forward, backward in LAYERS)
    assert found.iteration_ps == (50 + compute_us + 70) * 10**6
    assert found.explained == pytest.approx(compute_us / (compute_us + 120))
    assert "left out: 0.05 ms before the first layer and 0.07 ms after the last gradient" in found.notes[0]


def test_a_packed_profile_is_read_alike(tmp_path: Path) -> None:
    assert costs(read_foreign(written(tmp_path, packed(profile()), "a.json.gz"))) == EXPECTED


def test_a_profile_without_marks_is_cut_at_the_optimizers_steps(tmp_path: Path) -> None:
    made = Profile()
    for number in range(2):
        made.add_step(number)
    for event in made.events:
        if event["name"].startswith("ProfilerStep"):
            end = event["ts"] + event["dur"]
            event |= {"name": "Optimizer.step#SGD.step", "ts": end - 5, "dur": 5}
    found = read_foreign(written(tmp_path, made.content()))
    assert costs(found) == EXPECTED
    assert found.iterations == 2


def test_times_are_means_of_the_iterations_that_have_the_usual_layers(tmp_path: Path) -> None:
    made = Profile()
    made.add_step(0, LAYERS[:2])
    made.add_step(1)
    made.add_step(2, [(name, shapes, 3 * forward, backward) for name, shapes, forward, backward in LAYERS])
    found = read_foreign(written(tmp_path, made.content()))
    assert [layer.forward_ps for layer in found.workload.layers] == [2 * row[2] for row in EXPECTED]
    assert found.iterations == 2
    assert "left out: 1 iteration with other layers" in found.notes


def test_modules_name_layers_where_the_profiler_saw_them(tmp_path: Path) -> None:
    found = read_foreign(written(tmp_path, profile(with_modules=True)))
    assert [layer.name for layer in found.workload.layers] == ["conv2d_0", "batch_norm_0", "linear_0"]


def test_the_type_of_gradients_is_that_of_the_profile(tmp_path: Path) -> None:
    assert read_foreign(written(tmp_path, profile(dtype="c10::BFloat16"))).workload.dtype == "bf16"


@pytest.mark.parametrize("launch_us", [None, 2.0], ids=["cpu", "gpu"])
def test_without_shapes_layers_are_the_buckets_that_were_summed(tmp_path: Path, launch_us: float | None) -> None:
    found = read_foreign(written(tmp_path, profile(with_shapes=False, buckets=(2, 0), launch_us=launch_us)))
    conv, norm, linear = EXPECTED
    assert costs(found) == [
        ("bucket1", *(a + b for a, b in zip(conv[1:], norm[1:], strict=True))),
        ("bucket0", *linear[1:]),
    ]
    assert any("layers are the buckets" in note for note in found.notes)


def test_a_profile_with_neither_shapes_nor_sums_says_how_to_get_them(tmp_path: Path) -> None:
    assert "profile with record_shapes=True" in refusal(tmp_path, profile(with_shapes=False))


@pytest.mark.parametrize(
    ("name", "at_us", "said"),
    [
        ("nccl:all_to_all", 1190, "nccl:all_to_all in the forward pass, at layer 'batch_norm'"),
        ("nccl:all_reduce", 1060, "nccl:all_reduce in the forward pass, at layer 'conv2d'"),
        (
            "c10d::_allgather_base_",
            1300,
            "c10d::_allgather_base_ in the backward pass, before the gradient of 'linear'",
        ),
        ("gloo:send", 1450, "gloo:send in the backward pass, before the gradient of 'batch_norm'"),
    ],
)
def test_a_profile_that_is_not_data_parallel_is_refused_by_name(
    tmp_path: Path, name: str, at_us: float, said: str
) -> None:
    made = Profile()
    made.add_step(0)
    made.annotate(name, at_us)
    assert said in refusal(tmp_path, made.content())


def test_collectives_that_move_no_gradients_are_left_out_and_named(tmp_path: Path) -> None:
    made = Profile()
    made.add_step(0)
    made.annotate("nccl:broadcast", 1060)
    made.annotate("nccl:all_gather", 1010)
    made.annotate("nccl:all_reduce", 1500, "autograd")
    found = read_foreign(written(tmp_path, made.content()))
    assert "left out: collectives that sum no gradients: nccl:all_gather, nccl:broadcast" in found.notes


def test_several_backward_passes_in_an_iteration_are_refused(tmp_path: Path) -> None:
    made = Profile()
    made.add_step(0)
    made.add_step(1)
    made.events = [event for event in made.events if not event["name"].startswith("ProfilerStep")]
    said = refusal(tmp_path, made.content())
    assert "an iteration has several backward passes" in said
    assert "accepted: one forward and one backward pass for every profiler.step()" in said


def test_a_parameter_that_got_no_gradient_has_none(tmp_path: Path) -> None:
    made = Profile()
    made.add_step(0)
    first = next(event for event in made.events if event["name"] == "torch::autograd::AccumulateGrad")
    first["args"] = {"Input Dims": [[]], "Input type": [""]}
    found = read_foreign(written(tmp_path, made.content()))
    assert found.workload.layers[-1].params == 5120


def test_formats_are_recognised_by_content_and_the_choice_wins(tmp_path: Path) -> None:
    assert "is of no format that is known here; accepted: text workload" in refusal(tmp_path, b"\x00\x01\x02")
    assert "is of no format that is known here" in refusal(tmp_path, b"")
    assert "is not JSON" in refusal(tmp_path, TEXT, format_="kineto")
    assert "nodes without times" in refusal(tmp_path, json.dumps({"schema": "1.1.1", "nodes": []}))
    assert "cannot be unpacked" in refusal(tmp_path, packed(profile())[:-9])


def test_what_unpacks_to_more_than_is_accepted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorexpress.foreign import recognise

    monkeypatch.setattr(recognise, "LARGEST_FILE_BYTES", 2**16)
    bomb = packed(b"0" * 2**22)
    assert len(bomb) < 2**16
    assert "is larger than 65536 bytes" in refusal(tmp_path, bomb)


def test_names_are_different_and_survive_the_csv(tmp_path: Path) -> None:
    rows = [Part(name, 1, 1, 1) for name in ("a", "a", "a:2", "<a>", "a,b", "x" * 300, "x" * 300)]
    found = imported("w", "test", rows, dtype="fp32", iterations=1, iteration_ps=14, notes=[])
    names = [layer.name for layer in found.workload.layers]
    assert len(set(names)) == len(names)
    write_csv(found.workload, tmp_path / "w.csv", with_names=True)
    assert read_csv(tmp_path / "w.csv").layers == found.workload.layers


def test_the_verb_writes_what_job_csv_takes(tmp_path: Path) -> None:
    written(tmp_path, TEXT, "small.txt")
    output = tmp_path / "layers.csv"
    result = CliRunner().invoke(main, ["import", str(tmp_path / "small.txt"), "--unit", "us", "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert "3 layers, 5,370 parameters, 21.48 KB of gradients (fp32)" in result.stdout
    assert read_csv(output).layers == read_foreign(tmp_path / "small.txt", unit="us").workload.layers


def test_gaps_are_never_negative_where_gradients_come_out_of_order(tmp_path: Path) -> None:
    made = Profile()
    made.add_step(0)
    accumulated = [event for event in made.events if event["name"].endswith("AccumulateGrad")]
    for early, late in pairwise(accumulated[::4]):
        early["ts"], late["ts"] = late["ts"], early["ts"]
    found = read_foreign(written(tmp_path, made.content()))
    assert all(layer.backward_ps >= 0 for layer in found.workload.layers)


def test_the_page_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    assert run_blocks((DOCS / "import.md").read_text()) >= 2


def test_workload_error_is_what_a_file_gets(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot read .*missing"):
        read_foreign(tmp_path / "missing")
