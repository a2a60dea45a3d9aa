"""ARFF becomes CSV, and only what the file itself declares gets through."""

import pytest

from benchmarks.datasets.tables import arff_to_csv
from veracal.errors import DataError

GOOD = b"""% a comment
@relation people

@attribute age numeric
@ATTRIBUTE 'civil status' {'never married', widowed, '<, >'}
@attribute score integer [0, 5]
@data
30, 'never married',5
% another
4e1,widowed, ?
?,'<, >',0
"""


def test_values_are_kept_and_quoted_as_csv_wants():
    text = b'age,civil status,score\n30,never married,5\n4e1,widowed,?\n?,"<, >",0\n'
    assert arff_to_csv(GOOD) == text
    assert arff_to_csv(GOOD, header=False) == text.partition(b"\n")[2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"30,", b"old,", r"record 1: age: expected numeric, found 'old'"),
        (b"30,", b"inf,", r"record 1: age: expected numeric, found 'inf'"),
        (b"30,", b"nan,", r"record 1: age: expected numeric, found 'nan'"),
        (b"widowed, ?", b"wed, ?", r"record 2: civil status: expected .*found 'wed'"),
        (b",5\n", b",6\n", r"score: expected integer \[0, 5\], found '6'"),
        (b",5\n", b",5,5\n", "expected 3 fields, found 4"),
        (b"4e1,widowed, ?", b"{0 4e1}", "expected 3 fields, found 1"),
        (b"@data", b"@dat", "a line @data"),
        (b"@relation", b"@table", "a line @relation"),
        (b"age numeric", b"score numeric", "attributes of different names"),
        (b"age numeric", b"age", "attributes of different names, found @attribute age"),
        (b"age numeric", b"age string", "numeric or nominal attribute, found string"),
        (b"widowed, ?", b"\xff, ?", "UTF-8 text, found byte 0xff"),
    ],
)
def test_what_is_not_declared_is_refused(old, new, message):
    assert old in GOOD
    with pytest.raises(DataError, match=message):
        arff_to_csv(GOOD.replace(old, new))
