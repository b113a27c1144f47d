# SPDX-License-Identifier: MIT
"""Reading traces: what a good one holds, and what is said about a bad one."""

import csv
import gzip
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest

from gpumem._trace import TraceError, read_trace

TRACES = Path(__file__).parent.parent / "benchmarks" / "traces"

HEADER = "op,id,size,stream,us\n"
GOOD = HEADER + "a,0,700,0,0\na,1,512,3,5\nf,0,700,3,9\na,2,0,0,9\nf,2,0,0,10\n"


def read_text(tmp_path, text, name="trace.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_good_trace_is_held_as_it_is_written(tmp_path, packed, end):
    data = GOOD.replace("\n", end).encode()
    # The content decides, not the name: a gzip file may be called .csv.
    trace = read_text(tmp_path, gzip.compress(data) if packed else data)
    assert list(trace.allocates) == [1, 1, 0, 1, 0]
    assert list(trace.ids) == [0, 1, 0, 2, 2]
    assert list(trace.sizes) == [700, 512, 700, 0, 0]
    assert list(trace.streams) == [0, 3, 3, 0, 0]
    assert (trace.events, trace.allocations, trace.live_at_end) == (5, 3, 1)
    assert trace.peak_requested == 1212
    assert [trace.event_of_allocation(number) for number in range(3)] == [0, 1, 3]
    assert [trace.live_requested(event) for event in range(6)] == [
        0, 700, 1212, 512, 512, 512,
    ]  # fmt: skip


def test_the_peak_is_of_what_is_live_at_once(tmp_path):
    text = HEADER + "a,0,700,0,0\nf,0,700,0,1\na,1,600,0,2\na,2,50,0,3\n"
    assert read_text(tmp_path, text).peak_requested == 700


def test_the_last_line_may_lack_its_end(tmp_path):
    assert read_text(tmp_path, GOOD.rstrip("\n")).events == 5


def test_the_largest_numbers_are_kept(tmp_path):
    trace = read_text(tmp_path, f"{HEADER}a,0,{2**63 - 1},65535,{2**63 - 1}\n")
    assert trace.sizes[0] == 2**63 - 1
    assert trace.streams[0] == 65535


def test_a_recorded_trace_equals_what_the_csv_module_reads():
    path = TRACES / "four_streams.csv.gz"
    trace = read_trace(path)
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["op"] == "a" for row in rows] == list(map(bool, trace.allocates))
    for column, values in (
        ("id", trace.ids),
        ("size", trace.sizes),
        ("stream", trace.streams),
    ):
        assert [int(row[column]) for row in rows] == list(values)


@pytest.mark.parametrize(
    ("text", "line", "found", "expected"),
    [
        ("", 0, "an empty file", "the header 'op,id,size,stream,us'"),
        ("op,id\na,0,1,0,0\n", 1, "'op,id'", "the header"),
        ("a,0,1,0,0\n", 1, "'a,0,1,0,0'", "the header"),
        (HEADER, 2, "no event", "at least one"),
        (HEADER + "a,0,1,0\n", 2, "4 columns in 'a,0,1,0'", "5 columns"),
        (HEADER + "a,0,1,0,0,\n", 2, "6 columns", "5 columns"),
        (HEADER + "a,0,1,0,0\n\n", 3, "an empty line", "5 columns"),
        (HEADER + "x,0,1,0,0\n", 2, "op 'x'", "op 'a' or 'f'"),
        (HEADER + ",0,1,0,0\n", 2, "op ''", "op 'a' or 'f'"),
        (HEADER + "A,0,1,0,0\n", 2, "op 'A'", "op 'a' or 'f'"),
        (HEADER + "a,zero,1,0,0\n", 2, "id 'zero'", "a whole number from 0"),
        (HEADER + "a,0,1.5,0,0\n", 2, "size '1.5'", "a whole number from 0"),
        (HEADER + "a,0,-1,0,0\n", 2, "size '-1'", "a whole number from 0"),
        (HEADER + "a,0,,0,0\n", 2, "size ''", "a whole number from 0"),
        (HEADER + "a,0,1_0,0,0\n", 2, "size '1_0'", "a whole number from 0"),
        (HEADER + "a,0, 1,0,0\n", 2, "size ' 1'", "a whole number from 0"),
        (HEADER + "a,0,\u0661,0,0\n", 2, "size", "a whole number from 0"),
        (HEADER + f"a,0,{2**63},0,0\n", 2, f"size '{2**63}'", f"to {2**63 - 1}"),
        (HEADER + "a,0,1,65536,0\n", 2, "stream '65536'", "from 0 to 65535"),
        (HEADER + "a,0,1,0,soon\n", 2, "us 'soon'", "a whole number from 0"),
        (HEADER + "a,1,1,0,0\n", 2, "id 1", "id 0, the next one"),
        (
            HEADER + "a,0,1,0,0\na,0,1,0,0\n",
            3,
            "a second allocation with id 0",
            "id 1, the next one",
        ),
        (
            HEADER + "a,0,1,0,0\nf,1,1,0,0\n",
            3,
            "a free of id 1, which was never allocated",
            "the id of a live allocation",
        ),
        (
            HEADER + "a,0,1,0,0\nf,0,1,0,0\nf,0,1,0,0\n",
            4,
            "a free of id 0, which is free already",
            "the id of a live allocation",
        ),
        (
            HEADER + "a,0,700,0,0\nf,0,512,0,0\n",
            3,
            "size 512 for the free of id 0",
            "size 700, as it was allocated",
        ),
    ],
)
def test_a_malformed_trace_is_named_by_line(tmp_path, text, line, found, expected):
    with pytest.raises(TraceError) as caught:
        read_text(tmp_path, text)
    error = caught.value
    assert error.line == line
    assert error.found.startswith(found)
    assert expected in error.expected
    where = f", line {line}: found " if line else ": found "
    assert str(error).startswith(f"{tmp_path / 'trace.csv'}{where}{found}")


def test_a_file_without_lines_is_not_read_whole(tmp_path):
    path = tmp_path / "zeros.csv"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(TraceError) as caught:
            read_trace(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert caught.value.line == 1
    assert len(str(caught.value)) < 500 + len(str(path))


def test_a_gzip_file_cut_short_is_named_by_the_line_it_breaks_in_or_just_before(
    tmp_path,
):
    whole = (TRACES / "prefetch_two_streams.csv.gz").read_bytes()
    cut = whole[: len(whole) // 2]
    with pytest.raises(TraceError) as caught:
        read_text(tmp_path, cut, "cut.csv.gz")
    readable = zlib.decompressobj(wbits=31).decompress(cut)
    # What the decompressor had in its two buffers of 8 KiB is lost with the error.
    surely_read = readable[: -2 * 8192].count(b"\n")
    assert surely_read < caught.value.line <= readable.count(b"\n") + 1
    assert caught.value.found.startswith("gzip data that is cut short")


def test_damaged_gzip_data_is_an_error(tmp_path):
    data = bytearray(gzip.compress(GOOD.encode()))
    data[-8] ^= 1  # the checksum
    with pytest.raises(TraceError, match="damaged gzip data"):
        read_text(tmp_path, bytes(data))
    data[10] = 0b111  # a kind of block that does not exist
    with pytest.raises(TraceError, match="damaged gzip data .*invalid block type"):
        read_text(tmp_path, bytes(data))


def test_a_name_that_promises_gzip_is_held_to_it(tmp_path):
    with pytest.raises(TraceError, match=r"found data that is not gzip.*name says"):
        read_text(tmp_path, GOOD, "trace.csv.gz")


def test_a_file_that_does_not_open_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="found no such file"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(TraceError, match="found is a directory"):
        read_trace(os.fspath(tmp_path))
