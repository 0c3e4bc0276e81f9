import doctest
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from support.thorough import rest

from tensorexpress import models
from tensorexpress.cli.models import models as command
from tensorexpress.errors import InputError, WorkloadError
from tensorexpress.models import convnets, devices, llamas, recommenders, structure, transformers
from tensorexpress.workload import DTYPE_BYTES, read_csv

PUBLISHED_PARAMS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "inception-v3": 23_834_568,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    # The paper says 65 million; this is its architecture with 37,000 shared word pieces.
    "transformer-base": 63_082_496,
    "vit-l16": 304_326_632,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "mixtral-8x7b": 46_702_792_704,
    # 33,762,577 rows of 16 columns, which the paper calls 540 million, and the two perceptrons.
    "dlrm": 16 * 33_762_577 + 155_984 + 320_001,
    "dlrm-sparse": 16 * 33_762_577 + 155_984 + 320_001,
    # 187,767,399 rows of 128 columns, and the perceptrons 13-512-256-128 and 479-1024-1024-512-256-1.
    "dlrm-mlperf": 128 * 187_767_399 + 171_392 + 2_197_505,
}

#: Billions of multiply-accumulates of one sample, as torchvision lists them.
PUBLISHED_GIGA_MACS = {
    "alexnet": 0.71,
    "vgg16": 15.47,
    "vgg19": 19.63,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "inception-v3": 5.71,
    "vit-l16": 61.55,
}


def params_below(name: str, prefix: str) -> int:
    return sum(layer.params for layer in models.architecture(name).layers if layer.name.startswith(prefix))


def samples_per_second(name: str, device: str, dtype: str = "", batch: int = 64) -> float:
    return batch * 1e12 / models.load(name, batch, device, dtype).compute_ps


def run(*arguments: str):
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize("module", [models, convnets, devices, llamas, recommenders, structure, transformers])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0


def test_the_zoo_is_complete():
    assert models.names() == tuple(PUBLISHED_PARAMS)


@pytest.mark.parametrize(("name", "params"), PUBLISHED_PARAMS.items())
def test_parameters_equal_the_published_total(name, params):
    assert models.architecture(name).params == params


@pytest.mark.parametrize(
    ("name", "block", "params"),
    [
        ("bert-base", "block0.", 7_087_872),
        ("bert-base", "block11.", 7_087_872),
        ("bert-large", "block23.", 12_596_224),
        ("gpt2", "block0.", 7_087_872),
        ("gpt2", "embed.", 38_597_376 + 786_432),
        ("bert-base", "embed.", 23_837_184),
        ("bert-base", "pooler", 590_592),
        ("transformer-base", "encoder0.", 3_152_384),
        ("transformer-base", "decoder5.", 4_204_032),
        ("resnet50", "layer1.0.", 75_008),
        ("resnet50", "layer4.", 14_964_736),
        ("resnet50", "fc", 2_049_000),
        ("inception-v3", "mixed5b.", 255_904),
        ("inception-v3", "mixed7c.", 6_076_800),
        ("vgg16", "fc1", 102_764_544),
        ("alexnet", "conv1", 23_296),
        ("vit-l16", "block0.", 12_596_224),
        ("llama2-7b", "block31.", 202_383_360),
        ("llama3-8b", "head", 128_256 * 4096 + 4096),
        ("mixtral-8x7b", "block0.expert7.", 3 * 4096 * 14_336),
        ("dlrm", "top", 320_001),
    ],
)
def test_parameters_of_blocks(name, block, params):
    assert params_below(name, block) == params


@pytest.mark.parametrize(
    ("name", "layers"), [("vgg16", 16), ("vgg19", 19), ("resnet50", 50 + 4), ("resnet101", 101 + 4)]
)
def test_layers_are_those_of_the_name_and_the_four_projections(name, layers):
    assert len(models.architecture(name).layers) == layers


@pytest.mark.parametrize(("name", "giga_macs"), PUBLISHED_GIGA_MACS.items())
def test_operations_on_images_are_the_published_ones(name, giga_macs):
    assert models.architecture(name).flops / 2e9 == pytest.approx(giga_macs, rel=0.01)


@pytest.mark.parametrize(("name", "giga_flops"), [("bert-base", 22.5), ("gpt2", 291.648)])
def test_operations_of_transformers_are_the_published_ones(name, giga_flops):
    assert models.architecture(name).flops / 1e9 == pytest.approx(giga_flops, rel=0.01)


@pytest.mark.parametrize("name", ["bert-large", "gpt2-xl", "llama2-7b", "llama2-70b", "llama3-8b"])
def test_a_transformer_does_about_two_operations_per_parameter_and_token(name):
    model = models.architecture(name)
    tokens = int(model.sample.split()[3].replace(",", ""))
    in_blocks = params_below(name, "block")
    assert 2 * in_blocks * tokens < model.flops < 1.42 * 2 * in_blocks * tokens


def test_a_mixture_computes_with_two_experts_of_eight():
    model = models.architecture("mixtral-8x7b")
    experts = [layer for layer in model.layers if ".expert" in layer.name]
    # The paper speaks of 13 billion active parameters.
    active = model.params - sum(layer.params for layer in experts) * 6 // 8
    assert active == pytest.approx(12.9e9, rel=0.01)
    assert sum(layer.flops for layer in experts) == 2 * 4096 * sum(layer.params for layer in experts) * 2 // 8


@pytest.mark.parametrize("name", models.names())
def test_every_layer_has_a_name_of_its_own_parameters_and_work(name):
    model = models.architecture(name)
    assert len({layer.name for layer in model.layers}) == len(model.layers)
    assert all(layer.params >= 1 and layer.flops >= 1 for layer in model.layers)


def test_a_projection_comes_after_the_main_branch_that_runs_first():
    order = [layer.name for layer in models.architecture("resnet50").layers[:5]]
    assert order == ["conv1", "layer1.0.conv1", "layer1.0.conv2", "layer1.0.conv3", "layer1.0.downsample"]


@pytest.mark.parametrize("name", models.names())
def test_a_workload_has_the_parameters_of_its_architecture_and_twice_the_time_backward(name):
    model, workload = models.architecture(name), models.load(name)
    assert workload.name == name
    assert [layer.params for layer in workload.layers] == [layer.params for layer in model.layers]
    assert all(layer.backward_ps == 2 * layer.forward_ps > 0 for layer in workload.layers)


def test_zero_stands_for_the_default_batch():
    assert models.load("resnet50") == models.load("resnet50", 64)


@given(st.sampled_from(models.names()), st.integers(1, 1000), st.sampled_from(sorted(models.DEVICES)))
def test_time_grows_in_proportion_to_the_batch(name, batch, device):
    one = models.load(name, 1, device)
    assume(batch * max(layer.backward_ps for layer in one.layers) < 9 * 10**15)  # longer ones are refused
    many = models.load(name, batch, device)
    for small, large in zip(one.layers, many.layers, strict=True):
        assert abs(large.forward_ps - batch * small.forward_ps) <= (batch + 1) / 2


#: Images a second of one GPU in training, as published.
PUBLISHED = {
    ("resnet50", "v100", "fp32"): 432,
    ("resnet50", "v100", "fp16"): 1276,
    ("resnet50", "a100", "tf32"): 953,
    ("resnet50", "a100", "fp16"): 2075,
    ("inception-v3", "v100", "fp32"): 273,
    ("inception-v3", "v100", "fp16"): 771,
    ("inception-v3", "a100", "tf32"): 627,
    ("inception-v3", "a100", "fp16"): 1222,
    ("vgg16", "v100", "fp32"): 249,
    ("vgg16", "v100", "fp16"): 456,
    ("vgg16", "a100", "tf32"): 504,
    ("vgg16", "a100", "fp16"): 1190,
    ("alexnet", "v100", "fp32"): 5132,
    ("alexnet", "v100", "fp16"): 9319,
    ("alexnet", "a100", "tf32"): 10187,
    ("alexnet", "a100", "fp16"): 16487,
}

#: What others measured, to which rates were fitted or which they are near; docs/models.md says by whom.
MEASURED = {
    ("resnet50", "k80", "fp32"): 51.9,
    ("inception-v3", "k80", "fp32"): 30.5,
    ("vgg16", "k80", "fp32"): 35.4,
    ("alexnet", "k80", "fp32"): 656,
    ("resnet50", "p100", "fp32"): 219,
    ("inception-v3", "p100", "fp32"): 142,
    ("vgg16", "p100", "fp32"): 154,
    ("alexnet", "p100", "fp32"): 2987,
    ("resnet50", "h100", "fp16"): 2790,
    ("resnet50", "h200", "tf32"): 2259,
    ("resnet50", "h200", "fp16"): 3079,
    ("resnet50", "b200", "tf32"): 2967,
    ("resnet50", "b200", "fp16"): 3076,
    ("resnet50", "rtx4090", "tf32"): 721,
    ("resnet50", "rtx4090", "fp16"): 1301,
    # Sequences of 4,096 tokens at 3,700 tokens/s, and of 8,192 at 5,762.
    ("llama2-7b", "a100", "bf16"): 3700 / 4096,
    ("llama3-8b", "h100", "bf16"): 5762 / 8192,
}


@pytest.mark.parametrize(("name", "device", "dtype"), PUBLISHED)
def test_throughput_is_within_20_per_cent_of_what_was_published(name, device, dtype):
    assert samples_per_second(name, device, dtype) == pytest.approx(PUBLISHED[name, device, dtype], rel=0.2)


@pytest.mark.parametrize(("name", "device", "dtype"), MEASURED)
def test_throughput_is_within_12_per_cent_of_what_was_measured(name, device, dtype):
    assert samples_per_second(name, device, dtype) == pytest.approx(MEASURED[name, device, dtype], rel=0.12)


# The least and the most samples a second that were measured by several; docs/models.md says by whom.
@pytest.mark.parametrize(
    ("name", "device", "least", "most"),
    [
        ("resnet50", "v100", 356, 432),
        ("resnet50", "a100", 938, 1066),
        ("resnet50", "h100", 1753, 1898),
        ("inception-v3", "v100", 259, 273),
        ("bert-large", "v100", 40, 42),
        ("bert-large", "a100", 234, 317),
    ],
)
def test_throughput_is_within_5_per_cent_of_some_measurement(name, device, least, most):
    assert 0.95 * least <= samples_per_second(name, device) <= 1.05 * most


@pytest.mark.parametrize(
    ("device", "dtype", "sequences"),
    [
        ("v100", "fp16", 57),
        ("a100", "fp16", 152),
        ("h100", "fp16", 310),
        ("h200", "tf32", 181),
        ("h200", "fp16", 350),
        ("b200", "tf32", 281),
        ("b200", "fp16", 523),
        ("rtx4090", "tf32", 44),
        ("rtx4090", "fp16", 93),
    ],
)
def test_transformers_are_as_fast_as_bert_large_was_on_384_tokens(device, dtype, sequences):
    _, rates = models.rates_of(device, dtype)
    assert rates.transformer / (3 * 246.4e9) == pytest.approx(sequences, rel=0.01)


def test_the_default_scenario_computes_for_about_178_ms():
    assert models.load("resnet50", 64, "v100").compute_ps == 178_437_131_205


EVERY_RATE = [(device, dtype) for device in models.DEVICES.values() for dtype in device.rates]


@pytest.mark.parametrize(("device", "dtype"), EVERY_RATE, ids=lambda value: getattr(value, "name", value))
def test_no_device_reaches_its_peak_but_where_multiplications_are_saved(device, dtype):
    rates = device.rates[dtype]
    # Winograd's algorithm for 3×3 convolutions does 16 multiplications where 36 are counted.
    assert 0 < rates.convolution < rates.peak * 36 / 16
    assert all(0 < rate < rates.peak for rate in rates[1:-1])


@pytest.mark.parametrize("device", models.DEVICES.values(), ids=lambda device: device.name)
def test_fewer_bits_are_never_slower(device):
    order = [device.rates[dtype] for dtype in ("fp32", "tf32", "bf16") if dtype in device.rates]
    for slower, faster in pairwise(order):
        assert all(one <= other for one, other in zip(slower, faster, strict=True))


@pytest.mark.parametrize("device", models.DEVICES.values(), ids=lambda device: device.name)
def test_a_device_has_fp32_a_source_and_computes_in_tf32_where_it_can(device):
    assert set(device.rates) <= set(DTYPE_BYTES)
    assert "fp32" in device.rates
    assert device.source
    assert device.usual_dtype == ("tf32" if "tf32" in device.rates else "fp32")
    assert models.load("alexnet", device=device.name).dtype == device.usual_dtype


def test_half_precision_halves_the_gradients():
    full, half = models.load("vgg16", device="a100"), models.load("vgg16", device="a100", dtype="BF16")
    assert full.tensor_bytes == tuple(2 * size for size in half.tensor_bytes)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("ResNet-50", "resnet50"),
        ("RESNET101", "resnet101"),
        ("VGG-16", "vgg16"),
        ("vgg_19", "vgg19"),
        ("Inception v3", "inception-v3"),
        ("inception3", "inception-v3"),
        ("BERT-Base", "bert-base"),
        ("bertlarge", "bert-large"),
        ("GPT-2", "gpt2"),
        ("GPT-2 XL", "gpt2-xl"),
        ("Transformer", "transformer-base"),
        ("ViT-L/16", "vit-l16"),
        ("Llama-2 7B", "llama2-7b"),
        ("llama-3-8b", "llama3-8b"),
        ("Mixtral-8x7B", "mixtral-8x7b"),
    ],
)
def test_usual_spellings_are_accepted(alias, name):
    assert models.architecture(alias) is models.architecture(name)
    assert models.load(alias, device="V100") == models.load(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("resnet5",), "unknown model 'resnet5'; did you mean 'resnet50'"),
        (("",), "unknown model ''"),
        (("vgg16", 1, "v1000"), "unknown device 'v1000'; did you mean 'v100'"),
        (("vgg16", -1), "batch -1 for model vgg16; accepted: 1 to 1,000,000"),
        (("vgg16", 1_000_001), "batch 1000001 for model vgg16"),
        (("vgg16", 1, "v100", "bf16"), "device v100 computes in no 'bf16' here; accepted: fp32, fp16"),
        (("vgg16", 1, "v100", "int8"), "device v100 computes in no 'int8' here"),
    ],
)
def test_errors_say_what_is_accepted(arguments, message):
    with pytest.raises(WorkloadError, match="^" + message) as caught:
        models.load(*arguments)
    assert "ccepted: " in str(caught.value)


def test_the_list_shows_every_model_in_100_columns():
    result = run()
    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert [line.split()[0] for line in lines[1:]] == list(models.names())
    assert all(len(line) <= 100 for line in lines)
    assert "138,357,544      553.4    74.3%     64  Simonyan" in result.output


def test_the_list_as_json():
    rows = json.loads(run("--json").output)
    assert {row["name"]: row["params"] for row in rows} == PUBLISHED_PARAMS
    assert all(row["bytes"] == 4 * row["params"] for row in rows)


@rest(but=6)
@pytest.mark.parametrize("name", models.names())
def test_show_prints_every_layer_in_100_columns(name):
    result = run("show", name, "--device", "a100")
    assert result.exit_code == 0
    assert all(len(line) <= 100 for line in result.output.splitlines())
    assert all(f" {layer.name} " in result.output for layer in models.architecture(name).layers)
    assert f"{models.architecture(name).params:,}" in result.output


@pytest.mark.parametrize(
    "arguments", [("show", "vgg16", "--batch", "32", "--json"), ("--json", "show", "vgg16", "--batch", "32")]
)
def test_show_as_json(arguments):
    details = json.loads(run(*arguments).output)
    expected = models.load("vgg16", 32)
    assert details["batch"] == 32
    assert [layer["forward_ps"] for layer in details["layers"]] == [layer.forward_ps for layer in expected.layers]
    assert sum(layer["share"] for layer in details["layers"]) == pytest.approx(1)


def test_show_has_keys_width_and_lookups_of_sparse_tables():
    lines = run("show", "dlrm-sparse").output.splitlines()
    (header,) = [line for line in lines if line.endswith("keys  width  lookups  rows sent")]
    (row,) = [line for line in lines if " embed2 " in line]
    assert row.split()[-4:-1] == ["10,131,227", "16", "128"]
    assert len(row) == len(header)
    assert "lookups" not in run("show", "dlrm").output


def test_a_sparse_model_looks_up_a_row_of_every_table_for_every_sample():
    dense, sparse = models.load("dlrm", 512), models.load("dlrm-sparse", 512)
    none = {"keys": 0, "width": 0, "lookups": 0, "skew": 0}
    assert [replace(layer, **none) for layer in sparse.layers] == list(dense.layers)
    tables = [layer.table for layer in sparse.layers if layer.table is not None]
    assert len(tables) == 26
    assert {(table.width, table.lookups) for table in tables} == {(16, 512)}
    assert all(few <= many for few, many in zip(sparse.tensor_bytes, dense.tensor_bytes, strict=True))
    # No more than a row and its key for every lookup, and no less than the perceptrons.
    assert 4 * 475_985 < sum(sparse.tensor_bytes) <= 4 * 475_985 + 26 * 512 * 72


def test_show_in_another_precision():
    details = json.loads(run("show", "vgg16", "--device", "a100", "--dtype", "bf16", "--json").output)
    assert (details["dtype"], details["bytes"]) == ("bf16", 2 * PUBLISHED_PARAMS["vgg16"])
    assert details["samples_per_second"] == pytest.approx(samples_per_second("vgg16", "a100", "bf16"))
    # One network, one rate, where all layers are of nearly one family.
    assert details["effective_flops"] == pytest.approx(100e12, rel=0.03)


def test_devices_are_listed_with_their_rates_and_sources():
    rows = json.loads(run("devices", "--json").output)
    assert [(row["name"], row["dtype"]) for row in rows] == [(device.name, dtype) for device, dtype in EVERY_RATE]
    assert all(row["normed_convolution"] < row["peak"] and row["source"] for row in rows)
    lines = run("devices").output.splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert "v100     fp32          24.3                 8.8    8.8            9                 9   15.7" in lines


def test_show_writes_a_csv_that_reads_back(tmp_path):
    result = run("show", "resnet50", "--json", "--csv", str(tmp_path / "r.csv"))
    assert json.loads(result.stdout)["params"] == PUBLISHED_PARAMS["resnet50"]
    assert result.stderr == f"wrote {tmp_path / 'r.csv'}\n"
    expected = [(layer.params, layer.forward_ps, layer.backward_ps) for layer in models.load("resnet50").layers]
    found = [(layer.params, layer.forward_ps, layer.backward_ps) for layer in read_csv(tmp_path / "r.csv").layers]
    assert found == expected


@pytest.mark.parametrize(
    "arguments", [("show", "nope"), ("show", "vgg16", "--device", "nope"), ("show", "vgg16", "--csv", "no/such/file")]
)
def test_our_errors_pass_through_and_nothing_is_printed(arguments):
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    assert result.stdout == ""


@pytest.mark.parametrize("batch", ["0", "-1", "many"])
def test_a_bad_batch_is_a_usage_error(batch):
    result = run("show", "vgg16", "--batch", batch)
    assert result.exit_code == 2
    assert "--batch" in result.output


def test_the_documentation_shows_the_list_as_it_is_printed():
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"```\n{run().output}```" in page
    assert f"```\n{run('devices').output}```" in page
