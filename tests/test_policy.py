from __future__ import annotations

import contextlib
import json
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress import policy
from tensorexpress.errors import InputError, PolicyError
from tensorexpress.policy import PLACEMENTS, POLICIES, QUEUE_MAPS, SUMS, Policy, describe, parse_policy
from tensorexpress.queueing import DISCIPLINES, HOST_ORDERS

CHOICES = ("slice", "host", "credit", "switch", "queues", "sum", "placement")


def differences(one: Policy, other: Policy) -> set[str]:
    return {f.name for f in fields(Policy) if getattr(one, f.name) != getattr(other, f.name)} - {"name"}


def test_the_named_policies_of_the_field_are_there():
    known = {"fifo", "random", "tictac", "bytescheduler", "p3", "switch-only", "tensorexpress", "ideal", "switchml"}
    assert set(POLICIES) == {*known, "libra", "atp", "inart", "tensorexpress+sum"}
    assert all(parse_policy(name) is POLICIES[name] for name in POLICIES)


def test_named_policies_cannot_be_changed_in_place():
    with pytest.raises(TypeError):
        POLICIES["fifo"] = POLICIES["p3"]
    with pytest.raises(FrozenInstanceError):
        POLICIES["fifo"].slice_bytes = 1


def test_each_policy_differs_from_its_predecessor_by_what_its_paper_adds():
    assert differences(POLICIES["fifo"], POLICIES["tictac"]) == {"host_order"}
    assert differences(POLICIES["tictac"], POLICIES["p3"]) == {"slice_bytes"}
    assert differences(POLICIES["tictac"], POLICIES["bytescheduler"]) == {"slice_bytes", "credit_bytes"}
    assert differences(parse_policy("p3:slice=32 KB"), POLICIES["tensorexpress"]) == {"discipline", "queue_map"}
    assert differences(POLICIES["tensorexpress"], POLICIES["ideal"]) == {"discipline", "queue_map"}
    assert differences(POLICIES["fifo"], POLICIES["switchml"]) == {"sums"}
    # Where switches sum, packets are cut, and slices are not.
    assert differences(POLICIES["tensorexpress"], POLICIES["tensorexpress+sum"]) == {"sums", "slice_bytes"}


def test_p3_slices_fifty_thousand_parameters_of_four_bytes():
    assert POLICIES["p3"].slice_bytes == 50_000 * 4


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("fifo:slice=200 KB", "slice_bytes", 200_000),
        ("p3:slice=whole", "slice_bytes", 0),
        ("fifo:host=priority", "host_order", "priority"),
        ("fifo:credit=1 MB", "credit_bytes", 1_000_000),
        ("bytescheduler:credit=none", "credit_bytes", 0),
        ("fifo:switch=strict", "discipline", "strict"),
        ("tensorexpress:queues=equal", "queue_map", "equal"),
        ("fifo:sum=pool", "sums", "pool"),
        ("tensorexpress+sum:sum=none", "sums", "none"),
    ],
)
def test_one_choice_changes_one_field(text, field, value):
    base = POLICIES[text.partition(":")[0]]
    changed = parse_policy(text)
    assert getattr(changed, field) == value
    assert differences(base, changed) == {field}
    assert changed.name == text


def test_spaces_and_trailing_commas_do_not_matter():
    tidy, loose = (
        parse_policy("fifo:slice=200 KB,switch=strict"),
        parse_policy(" fifo : slice = 200 KB , switch= strict ,"),
    )
    assert replace(tidy, name="any") == replace(loose, name="any")


def test_choices_that_together_make_a_valid_policy_are_taken_together():
    mixed = parse_policy("tensorexpress:switch=sp-pifo,queues=slack")
    assert (mixed.discipline, mixed.queue_map) == ("sp-pifo", "slack")


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (
            "",
            "unknown policy ''; Accepted: atp, bytescheduler, fifo, ideal, inart, libra, p3, random, switch-only, ",
        ),
        ("fiffo", "unknown policy 'fiffo'; did you mean 'fifo'?"),
        (
            "fifo:slise=1 KB",
            "unknown choice 'slise'; did you mean 'slice'? Accepted: credit, host, placement, queues, "
            "slice, sum, switch",
        ),
        ("fifo:slice", "'slice' has no value or two"),
        ("fifo:slice=1 KB,slice=2 KB", "'slice' has no value or two"),
        ("fifo:slice=1 furlong", "slice: '1 furlong' is not a size; accepted: a number and one of B"),
        ("fifo:slice=-1 KB", "slice: '-1 KB' is negative"),
        ("fifo:credit=", "credit: '' is not a size"),
        ("fifo:host=oldest", "unknown host order 'oldest'; Accepted: fifo, priority, random"),
        ("fifo:switch=wfq", "unknown switch discipline 'wfq'; Accepted: fifo, pifo, sp-pifo, strict"),
        ("fifo:queues=last", "unknown queue map 'last'; Accepted: equal, fewest, optimal, slack"),
        ("fifo:queues=slack", "queue map 'slack' has no table for discipline 'fifo'; accepted with it: pifo, sp-pifo"),
        ("tensorexpress:queues=slack", "accepted with it: pifo, sp-pifo"),
        ("fifo:sum=mixed", "unknown sum 'mixed'; Accepted: front, hashed, none, pool"),
        ("switchml:credit=1 MB", "credit counts what is not acknowledged"),
        ("bytescheduler:sum=pool", "accepted with sum=pool: credit=none"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_what_is_accepted(text, phrase):
    with pytest.raises(PolicyError) as error:
        parse_policy(text)
    assert phrase in str(error.value)


@given(st.text() | st.builds("{}:{}".format, st.sampled_from(sorted(POLICIES)), st.text("slice=ho,tw19 KB:.-")))
def test_any_text_is_a_policy_or_an_input_error(text):
    with contextlib.suppress(InputError):
        assert isinstance(parse_policy(text), Policy)


@given(
    st.builds(
        Policy,
        name=st.just("mixed"),
        slice_bytes=st.integers(0, 10**6),
        host_order=st.sampled_from(sorted(HOST_ORDERS)),
        credit_bytes=st.just(0),
        discipline=st.sampled_from(sorted(DISCIPLINES)),
        queue_map=st.sampled_from(sorted(set(QUEUE_MAPS) - {"slack"})),
        sums=st.sampled_from(sorted(SUMS)),
    ),
    st.integers(0, 10**6),
)
def test_every_mix_of_the_choices_can_be_written(mixed, credit_bytes):
    if not mixed.in_switches:
        mixed = replace(mixed, credit_bytes=credit_bytes)
    for placement in PLACEMENTS:
        try:
            placed = replace(mixed, placement=placement)
        except PolicyError:
            continue
        _written_and_described(placed)


def _written_and_described(mixed: Policy) -> None:
    written = (
        f"fifo:slice={mixed.slice_bytes} B,host={mixed.host_order},credit={mixed.credit_bytes} B,"
        f"switch={mixed.discipline},queues={mixed.queue_map},sum={mixed.sums},placement={mixed.placement}"
    )
    assert replace(parse_policy(written), name="mixed") == mixed
    assert [word.partition("=")[0] for word in describe(mixed).split() if "=" in word] == [
        choice for choice in CHOICES if choice != "placement" or mixed.placement != "none"
    ]


def test_a_description_reads_back_as_the_same_choices():
    for named in POLICIES.values():
        words = describe(named).replace(" host=", ",host=").replace(" credit=", ",credit=")
        text = "fifo:" + words.replace(" switch=", ",switch=").replace(" queues=", ",queues=").replace(" sum=", ",sum=")
        text = text.replace(" placement=", ",placement=")
        assert differences(parse_policy(text), named) == set()


def test_json_holds_every_field():
    for named in POLICIES.values():
        assert Policy(**json.loads(json.dumps(policy.to_json(named)))) == named
