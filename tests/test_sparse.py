"""Sparse tables: touched rows, hot keys, layouts and traffic, held against simulation, brute force and closed forms."""

import doctest
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.thorough import examples, rest

from tensorexpress import confidence, hot_keys, lookups, register_layout, sparse
from tensorexpress.confidence import student_t, wilson
from tensorexpress.errors import InputError, WorkloadError
from tensorexpress.hot_keys import RowExchange, Validation, best_packets, identify, packets_in, traffic
from tensorexpress.lookups import halves, heat_of, read_lookups, sample_of_batches, sample_of_counts
from tensorexpress.register_layout import CoUse, co_use, in_turn, lay_out, packing, uses_together
from tensorexpress.sparse import SparseTable, ZipfHeat, expected_rows, rows_sent, sent_bytes

skews = st.one_of(st.just(0.0), st.floats(0, 10))
tables = st.builds(SparseTable, st.integers(1, 300), st.integers(1, 300), st.integers(1, 400), skews)
exchanges = st.builds(RowExchange, st.integers(1, 300), st.integers(1, 64), st.integers(1, 16))
#: Lookups as (batch, key), of few keys in few batches.
seen = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=120)
counted = st.dictionaries(st.integers(0, 10**17), st.integers(1, 10**6), min_size=1, max_size=50)


def probabilities(table: SparseTable) -> np.ndarray:
    """Zipf's law, row by row."""
    weights = np.array([float(rank) ** -table.skew for rank in range(1, table.keys + 1)])
    return weights / weights.sum()


def of_batches(rows):
    return sample_of_batches("seen", *(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def of_counts(counts):
    return sample_of_counts("seen", *(np.array(list(each), dtype=np.int64) for each in (counts, counts.values())))


@pytest.mark.parametrize("module", [confidence, hot_keys, lookups, register_layout, sparse])
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keys": 0}, "keys of a sparse table are 0; accepted: 1 to 1000000000000"),
        ({"width": 2**20 + 1}, "width of a sparse table are 1048577; accepted: 1 to 1048576"),
        ({"lookups": 0}, "lookups of a sparse table are 0; accepted: 1 to"),
        ({"skew": -0.1}, "the skew of a sparse table is -0.1; accepted: 0 to 10"),
        ({"skew": float("nan")}, "the skew of a sparse table is nan; accepted: 0 to 10"),
    ],
)
def test_tables_that_cannot_be_are_refused(values, message):
    with pytest.raises(WorkloadError, match=message):
        SparseTable(**{"keys": 1, "width": 1, "lookups": 1, **values})


@given(st.integers(1, 5), st.integers(1, 5), skews)
def test_expected_rows_are_those_of_all_possible_draws(keys, draws, skew):
    table = SparseTable(keys, 1, draws, skew)
    probability = probabilities(table)
    expected = 0.0
    for drawn in np.ndindex(*[keys] * draws):
        expected += len(set(drawn)) * float(np.prod(probability[list(drawn)]))
    assert expected_rows(table) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.05, 2.0])
def test_expected_rows_are_those_of_a_simulation(skew):
    table, iterations, workers = SparseTable(5000, 1, 700, skew), 200, 3
    rng = np.random.default_rng(1)
    drawn = rng.choice(table.keys, size=(iterations, workers, table.lookups), p=probabilities(table))
    of_one = [len(np.unique(iteration[0])) for iteration in drawn]
    of_all = [len(np.unique(iteration)) for iteration in drawn]
    for found, expected in ((of_one, expected_rows(table)), (of_all, expected_rows(table, workers))):
        # Five standard errors: one seed in a million would miss it.
        assert np.mean(found) == pytest.approx(expected, abs=5 * np.std(found) / iterations**0.5 + 1e-9)


@given(tables, st.integers(1, 9), st.integers(0, 400))
def test_hottest_rows_cover_what_a_sum_over_them_says(table, workers, hot):
    probability = probabilities(table)[:hot]
    found = ZipfHeat(table, workers).covered(min(hot, table.keys))
    assert found.of_lookups == pytest.approx(probability.sum(), rel=1e-9)
    assert found.rows == pytest.approx((1 - (1 - probability) ** (table.lookups * workers)).sum(), rel=1e-9)


@rest(but=6)
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.05, 1.5, 3.0])
@pytest.mark.parametrize("hot", [1_100_000, 3_000_000])
def test_rows_that_ranges_stand_for_are_as_good_as_counted_one_by_one(skew, hot):
    table = SparseTable(3_000_000, 16, 26_000, skew)
    weights = np.arange(1, table.keys + 1, dtype=np.float64) ** -skew
    probability = (weights / weights[::-1].sum())[:hot]
    found = ZipfHeat(table).covered(hot)
    assert found.of_lookups == pytest.approx(probability.sum(), rel=1e-10)
    assert found.rows == pytest.approx(sparse.touched(probability, table.lookups).sum(), rel=1e-10)


@pytest.mark.parametrize("keys", [10**9, 10**12])
def test_coverage_of_a_billion_keys_is_a_ratio_of_harmonic_numbers(keys):
    def harmonic(n):
        """Euler and Maclaurin; the next term is beyond floating point for the n here."""
        return np.log(n) + np.euler_gamma + 1 / (2 * n) - 1 / (12 * n**2)

    heat = ZipfHeat(SparseTable(keys, 1, 1000, 1.0))
    for hot in (10**3, 10**6, 10**8, keys):
        assert heat.covered(hot).of_lookups == pytest.approx(harmonic(hot) / harmonic(keys), rel=1e-9)


def test_a_billion_equal_keys_are_hardly_ever_hit_twice():
    table = SparseTable(10**9, 1, 10**6)
    # n - n (n - 1) / 2 / keys, as of birthdays
    assert expected_rows(table) == pytest.approx(10**6 - 10**6 * (10**6 - 1) / 2 / 10**9, rel=1e-6)


@given(tables, st.integers(1, 16))
def test_touched_rows_are_no_more_than_lookups_and_keys_and_grow_with_workers(table, workers):
    one, several = expected_rows(table), expected_rows(table, workers)
    assert 1 - 1e-9 <= one <= min(table.keys, table.lookups) + 1e-9
    assert one - 1e-9 <= several <= workers * one + 1e-9
    assert sent_bytes(table, 4) == rows_sent(table) * (8 + 4 * table.width)


@given(seen, st.integers(0, 15))
def test_hot_keys_are_those_that_a_search_of_all_sets_finds(rows, capacity):
    sample = of_batches(rows)
    touches = Counter(key for _, key in set(rows))
    uses = Counter(key for _, key in rows)
    found = identify(sample, capacity)
    best = sorted(touches, key=lambda key: (-touches[key], -uses[key], key))[:capacity]
    assert found.keys.tolist() == best
    assert found.counts.tolist() == [uses[key] for key in best]
    assert found.of_lookups == pytest.approx(sum(uses[key] for key in best) / len(rows))
    of_rows = sum(touches[key] for key in best) / len(set(rows))
    assert found.of_rows == pytest.approx(of_rows)
    # No other set of as many keys covers more of what is sent.
    if capacity <= 3:
        most = max(sum(touches[key] for key in keys) for keys in combinations(touches, min(capacity, len(touches))))
        assert of_rows == pytest.approx(most / len(set(rows)))


@given(counted, st.integers(0, 60), st.integers(1, 1000))
def test_counts_are_ranked_by_count_and_touched_as_drawn(counts, capacity, iteration):
    sample = of_counts(counts)
    found, total = identify(sample, capacity, iteration), sum(counts.values())
    best = sorted(counts, key=lambda key: (-counts[key], key))[:capacity]
    assert found.keys.tolist() == best
    rows = {key: 1 - (1 - count / total) ** iteration for key, count in counts.items()}
    assert found.of_rows == pytest.approx(sum(rows[key] for key in best) / sum(rows.values()), rel=1e-6)
    covered = heat_of(sample, iteration).covered(capacity)
    assert covered.of_lookups == pytest.approx(found.of_lookups)
    assert covered.rows == pytest.approx(sum(rows[key] for key in best), rel=1e-6)


@given(seen)
def test_a_sample_of_batches_keeps_every_lookup(rows):
    sample = of_batches(rows)
    key_of = sample.keys[sample.of_rank].tolist()
    batch_of = sorted({batch for batch, _ in rows})
    found = Counter()
    for batch, key, count in zip(sample.of_batch.tolist(), key_of, sample.of_count.tolist(), strict=True):
        found[batch_of[batch], key] += count
    assert found == Counter(rows)
    assert sample.lookups == len(rows)
    assert heat_of(sample).covered(99).rows == pytest.approx(len(set(rows)) / len(batch_of))


@given(seen)
def test_halves_are_the_earlier_and_the_later_batches_and_share_none(rows):
    sample, batches = of_batches(rows), sorted({batch for batch, _ in rows})
    parts = halves(sample)
    if len(batches) > 1:
        early = set(batches[: len(batches) // 2])
        for part, of_part in zip(parts, (True, False), strict=True):
            uses = Counter(key for batch, key in rows if (batch in early) is of_part)
            assert dict(zip(part.keys.tolist(), part.counts.tolist(), strict=True)) == uses
    elif parts is not None:
        assert sum(part.lookups for part in parts) == len(rows)


@given(counted)
def test_halves_of_counts_add_up_to_the_sample(counts):
    parts = halves(of_counts(counts))
    if parts is None:
        assert sum(counts.values()) < 60  # all of them in one half by chance
    else:
        found = Counter()
        for part in parts:
            found.update(dict(zip(part.keys.tolist(), part.counts.tolist(), strict=True)))
        assert found == counts


@given(seen, st.integers(0, 15))
def test_the_half_that_is_held_out_is_searched_by_nobody(rows, capacity):
    sample = of_batches(rows)
    batches = sorted({batch for batch, _ in rows})
    if len(batches) < 2:
        return
    early = set(batches[: len(batches) // 2])
    hot = set(identify(of_batches([row for row in rows if row[0] in early]), capacity).keys.tolist())
    later = [row for row in rows if row[0] not in early]
    found = Validation(sample).held_out(capacity)
    assert found.of_lookups == pytest.approx(sum(key in hot for _, key in later) / len(later))
    assert found.of_rows == pytest.approx(sum(key in hot for _, key in set(later)) / len(set(later)))
    assert 0 <= found.low <= found.of_lookups + 1e-9
    assert found.of_lookups - 1e-9 <= found.high <= 1


@pytest.mark.parametrize("batches", [True, False])
def test_the_confidence_of_a_coverage_holds(batches):
    """Of samples of one law, about 95 in 100 have the true share of the keys that they found in their interval."""
    table, size, samples, capacity = SparseTable(300, 1, 60, 1.0), 40, 300, 20
    probability, inside = probabilities(table), 0
    rng = np.random.default_rng(7)
    for _ in range(samples):
        key = rng.choice(table.keys, size=size * table.lookups, p=probability)
        sample = (
            sample_of_batches("drawn", np.repeat(np.arange(size), table.lookups), key)
            if batches
            else sample_of_counts("drawn", *np.unique(key, return_counts=True))
        )
        validation = Validation(sample, table.lookups)
        found = validation.held_out(capacity)
        true = probability[validation.parts[0].keys[:capacity]].sum()
        inside += found.low <= true <= found.high
    # Four standard errors of a share of 0.95 below it; intervals may be wider than they need to be.
    assert inside / samples >= 0.95 - 4 * (0.95 * 0.05 / samples) ** 0.5


def test_wilson_and_student_are_the_published_ones():
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert [student_t(freedom) for freedom in (1, 10, 10**6)] == [12.71, 2.23, 2.10]


@given(tables, exchanges, st.integers(0, 400))
def test_traffic_is_what_its_parts_weigh(table, exchange, packets):
    heat = ZipfHeat(table)
    found = traffic(heat, exchange, packets)
    assert found.hot == min(table.keys, packets * 256 // exchange.width)
    assert (found.packets - 1) * 256 < found.hot * exchange.width <= found.packets * 256 <= packets * 256
    assert found.memory_bytes == 2112 * found.packets
    rows = expected_rows(table) - heat.covered(found.hot).rows
    cold = rows * (8 + 4 * exchange.width) * (9038 / 8908)  # 9,000 bytes of IP in a frame, 8,908 of them tensor
    assert found.worker_bytes == pytest.approx(1138 * found.packets + cold, rel=1e-9, abs=1e-6)
    assert found.server_bytes == pytest.approx(1138 * found.packets + exchange.workers * cold, rel=1e-9, abs=1e-6)
    assert found.busiest_bytes == max(found.worker_bytes, found.server_bytes / exchange.servers)


@given(tables, exchanges, st.integers(0, 200))
@example(SparseTable(300, 1, 400, 1.0), RowExchange(300, 64, 1), 40)
@example(SparseTable(6, 1, 15, 0.0), RowExchange(298, 6, 5), 7)
@example(SparseTable(40, 1, 5, 0.0), RowExchange(114, 10, 2), 9)
@settings(max_examples=examples(200))
def test_the_best_number_of_packets_is_that_of_a_search_of_all(table, exchange, most):
    heat = ZipfHeat(table)
    found = traffic(heat, exchange, best_packets(heat, exchange, most))
    least = min(traffic(heat, exchange, packets).busiest_bytes for packets in range(most + 1))
    assert found.busiest_bytes == pytest.approx(least, rel=1e-9)


@given(tables, exchanges, st.integers(0, 200))
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_number_of_packets_that_is_not_searched_among_all_leaves_one_packet_more_at_most(
    monkeypatch, table, exchange, most
):
    monkeypatch.setattr(hot_keys, "_ALL_TRIED", -1)
    heat = ZipfHeat(table)
    found = traffic(heat, exchange, best_packets(heat, exchange, most))
    least = min(traffic(heat, exchange, packets).busiest_bytes for packets in range(most + 1))
    assert found.busiest_bytes <= least + 1138 + 1e-6


@given(seen, exchanges)
def test_the_best_number_of_packets_of_a_sample_is_that_of_a_search_of_all(rows, exchange):
    heat, most = heat_of(of_batches(rows)), exchange.packets_for(13) + 1
    found = traffic(heat, exchange, best_packets(heat, exchange, most))
    least = min(traffic(heat, exchange, packets).busiest_bytes for packets in range(most + 1))
    assert found.busiest_bytes == pytest.approx(least, rel=1e-9)


def test_a_hot_row_pays_where_workers_touch_it_often_enough():
    """With one worker to a server, a row is worth its place if its own bytes are: 64 against 72, and headers."""
    exchange, heat = RowExchange(16, 4, 4), ZipfHeat(SparseTable(10**6, 16, 100_000, 1.0))
    best = exchange.rows_in(best_packets(heat, exchange, 10**6))
    last, after = (heat.covered(rank).rows - heat.covered(rank - 1).rows for rank in (best - 16, best + 17))
    pays = 16 * 1138 / 256 / exchange.cold_row_bytes
    assert after < pays < last


def test_memory_holds_slots_of_two_sets_of_256_values():
    assert packets_in(10**6) == 473


uses = st.lists(st.sets(st.integers(0, 15), max_size=16), min_size=1, max_size=12)


def used(batches, rows=16):
    pairs = [(batch, rank) for batch, ranks in enumerate(batches) for rank in sorted(ranks)]
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return CoUse(rows, len(batches), columns[:, 0], columns[:, 1])


@given(uses, st.integers(1, 20))
def test_no_layout_puts_more_together_than_a_random_one_does_on_average(batches, arrays):
    together = used(batches)
    pairs = sum(len(ranks) * (len(ranks) - 1) // 2 for ranks in batches)
    layout = lay_out(together, arrays)
    assert uses_together(together, layout) <= pairs / arrays
    assert sorted(set(layout.array_of.tolist()) - set(range(arrays))) == []


@given(uses, st.integers(1, 20), st.integers(0, 5))
def test_a_layout_keeps_to_the_cells_of_arrays(batches, arrays, spare):
    cells = -(-16 // arrays) + spare
    layout = lay_out(used(batches), arrays, cells)
    assert len(layout.array_of) == 16
    assert np.bincount(layout.array_of).max() <= cells


@given(uses, st.integers(1, 20))
def test_uses_together_and_packets_are_those_of_a_count_one_by_one(batches, arrays):
    together, layout = used(batches), in_turn(16, arrays)
    clashes = packets = fullest = ideal = 0
    for ranks in batches:
        own = [rank % arrays for rank in sorted(ranks)]
        clashes += sum(one == other for one, other in combinations(own, 2))
        fullest += max(Counter(own).values(), default=0)
        ideal += -(-len(own) // arrays)
        packet: set[int] = set()
        packets += bool(own)
        for array in own:
            if array in packet:
                packets, packet = packets + 1, set()
            packet.add(array)
    assert uses_together(together, layout) == clashes
    found = packing(together, layout)
    assert found == pytest.approx((packets / len(batches), fullest / len(batches), ideal / len(batches)))
    assert found.ideal <= found.sorted <= found.in_order


def test_rows_that_are_used_together_are_laid_apart():
    """Features whose rows come in pairs: by heat alone both of a pair would be in one array."""
    rng = np.random.default_rng(3)
    batches = [{int(pair), int(pair) + 8} for pair in rng.integers(0, 8, size=200)]
    together = used(batches)
    assert uses_together(together, lay_out(together, 4, 4)) == 0
    assert uses_together(together, in_turn(16, 4)) == 200
    assert packing(together, lay_out(together, 4, 4)) == (1, 1, 1)
    assert packing(together, in_turn(16, 4)) == (2, 2, 1)


def test_layouts_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="16 rows do not fit into 3 arrays of 5 cells"):
        lay_out(used([{1}]), 3, 5)
    with pytest.raises(InputError, match="seen: does not say which keys are used together; accepted: rows of batch,"):
        co_use(of_counts({1: 2}), 1)


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "clicks.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def contents(sample):
    return (
        sample.batches,
        dict(zip(sample.keys.tolist(), sample.counts.tolist(), strict=True)),
        list(zip(sample.of_batch.tolist(), sample.of_rank.tolist(), sample.of_count.tolist(), strict=True)),
    )


@given(seen)
def test_lookups_survive_their_csv(tmp_path_factory, rows):
    text = "batch,key\n" + "".join(f"{batch},{key}\n" for batch, key in rows)
    directory = tmp_path_factory.mktemp("seen")
    read = read_lookups(written(directory, text))
    assert contents(read) == contents(of_batches(rows))
    # Read row by row, as it is not plain.
    assert contents(read_lookups(written(directory, text.replace(",", " , ").replace("\n", "\r\n\n")))) == contents(
        read
    )


@given(counted)
def test_counts_survive_their_csv(tmp_path_factory, counts):
    text = "key,count\n" + "\n".join(f"{key},{count}" for key, count in counts.items())
    directory = tmp_path_factory.mktemp("seen")
    read = read_lookups(written(directory, text))
    assert contents(read) == contents(of_counts(counts))
    assert contents(read_lookups(written(directory, "\ufeff" + text.replace(",", ", ")))) == contents(read)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "clicks.csv: is empty; accepted: a CSV file with the header key,count or batch,key"),
        ("key;count\n1;2\n", "clicks.csv:1: header is 'key;count'; accepted: key,count, or batch,key"),
        (b"\xff\xfe\x00k", "clicks.csv:1: header is "),
        ("batch,key\n", "clicks.csv:2: no row after the header; accepted: a row for every batch"),
        ("batch,key\n\n  \n", "clicks.csv:2: no row after the header"),
        ("key,count\n1,2\n1\n", "clicks.csv:3: '1' has 1 of 2 columns; accepted: key,count"),
        ("key,count\n1,2\n\n3,4,5\n", "clicks.csv:4: '3,4,5' has 3 of 2 columns; accepted: key,count"),
        ("key,count\n-1,2\n", "clicks.csv:2: key is '-1'; accepted: a whole number from 0 on, of at most 18 digits"),
        ("key,count\n1,2.5\n", "clicks.csv:2: count is '2.5'; accepted: a whole number"),
        ("key,count\n1,\n", "clicks.csv:2: count is ''; accepted: a whole number"),
        ("key,count\n1,0\n", "clicks.csv:2: count is 0; accepted: 1 or more; leave keys out"),
        ("key,count\n7,1\n8,1\n7,3\n", "clicks.csv:4: key 7 stands here again; accepted: every key once"),
        (f"batch,key\n0,{10**18}\n", "clicks.csv:2: key is '1000000000000000000'; accepted: a whole number"),
        (f"key,count\n1,{10**17}\n", "clicks.csv: has more than 1000000000000000 lookups"),
        ("batch,key\n0,٣\n", "clicks.csv:2: byte 0xd9 is no part of a number; accepted: rows of batch,key, in ASCII"),
        (b"batch,key\n0,1\n0,\xff\n", "clicks.csv:3: byte 0xff is no part of a number"),
        (b"batch,key\n0,1\n\x00,3\n", "clicks.csv:3: batch is"),
    ],
)
def test_bad_content_is_named_by_file_and_line(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_lookups(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_files_that_are_too_large_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lookups, "LARGEST_FILE_BYTES", 20)
    with pytest.raises(InputError, match="is larger than 20 bytes; accepted: fewer rows, as a sample"):
        read_lookups(written(tmp_path, "batch,key\n" + "1,1\n" * 3))
    monkeypatch.setattr(lookups, "LARGEST_FILE_BYTES", 100)
    monkeypatch.setattr(lookups, "MOST_ROWS", 2)
    with pytest.raises(InputError, match="has more than 2 rows; accepted: fewer, as a sample"):
        read_lookups(written(tmp_path, "batch,key\n" + "1,1\n" * 3))


def test_a_path_that_cannot_be_read_is_named(tmp_path):
    for name, reason in (("none.csv", "No such file"), (".", "Is a directory"), ("a\0b", "null byte")):
        with pytest.raises(InputError, match=f"cannot read .*{reason}"):
            read_lookups(f"{tmp_path}/{name}")
