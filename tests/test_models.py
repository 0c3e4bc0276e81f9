import doctest
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress import models
from tensorexpress.cli.models import models as command
from tensorexpress.errors import InputError, WorkloadError
from tensorexpress.models import convnets, devices, structure, transformers
from tensorexpress.workload import read_csv

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
}

#: Billions of multiply-accumulates of one sample, as torchvision lists them.
PUBLISHED_GIGA_MACS = {
    "alexnet": 0.71,
    "vgg16": 15.47,
    "vgg19": 19.63,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "inception-v3": 5.71,
}


def params_below(name: str, prefix: str) -> int:
    return sum(layer.params for layer in models.architecture(name).layers if layer.name.startswith(prefix))


def iteration_s(name: str, batch: int, device: str) -> float:
    return sum(layer.forward_ps + layer.backward_ps for layer in models.load(name, batch, device).layers) / 1e12


def run(*arguments: str):
    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize("module", [models, convnets, devices, structure, transformers])
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
def test_operations_of_convnets_are_the_published_ones(name, giga_macs):
    assert models.architecture(name).flops / 2e9 == pytest.approx(giga_macs, rel=0.01)


@pytest.mark.parametrize(("name", "giga_flops"), [("bert-base", 22.5), ("gpt2", 291.648)])
def test_operations_of_transformers_are_the_published_ones(name, giga_flops):
    assert models.architecture(name).flops / 1e9 == pytest.approx(giga_flops, rel=0.01)


@pytest.mark.parametrize("name", ["bert-large", "gpt2-xl"])
def test_a_transformer_does_about_two_operations_per_parameter_and_token(name):
    model = models.architecture(name)
    tokens = int(model.sample.split()[3])
    in_blocks = params_below(name, "block")
    assert 2 * in_blocks * tokens < model.flops < 1.25 * 2 * in_blocks * tokens


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
    one, many = models.load(name, 1, device), models.load(name, batch, device)
    for small, large in zip(one.layers, many.layers, strict=True):
        assert abs(large.forward_ps - batch * small.forward_ps) <= (batch + 1) / 2


# The least and the most samples a second that were measured; docs/models.md says by whom.
@pytest.mark.parametrize(
    ("name", "device", "least", "most"),
    [
        ("resnet50", "v100", 356, 405),
        ("resnet50", "a100", 938, 1066),
        ("resnet50", "h100", 1753, 1898),
        ("inception-v3", "v100", 259, 259),
        ("bert-large", "v100", 40, 42),
        ("bert-large", "a100", 234, 317),
    ],
)
def test_throughput_is_within_5_per_cent_of_what_was_measured(name, device, least, most):
    assert 0.95 * least <= 64 / iteration_s(name, 64, device) <= 1.05 * most


def test_the_default_scenario_computes_for_about_178_ms():
    assert iteration_s("resnet50", 64, "v100") == pytest.approx(0.178, rel=0.01)


@pytest.mark.parametrize("device", models.DEVICES.values(), ids=lambda device: device.name)
def test_no_device_reaches_its_peak(device):
    assert device.effective_flops <= device.transformer_flops < device.peak_flops


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
    assert "138,357,544    553.4    74.3%     64  Simonyan" in result.output


def test_the_list_as_json():
    rows = json.loads(run("--json").output)
    assert {row["name"]: row["params"] for row in rows} == PUBLISHED_PARAMS
    assert all(row["bytes"] == 4 * row["params"] for row in rows)


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
