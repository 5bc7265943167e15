from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from geostream.lookahead import LookAhead

MB = 2**20


def test_a_number_is_kept():
    ahead = LookAhead(3, 10 * MB)
    for _ in range(5):
        ahead.delivered(waited=True, cost=9 * MB)
    assert ahead.batches == 3


def test_it_grows_while_the_consumer_waits():
    ahead = LookAhead("auto", 1000 * MB)
    first = ahead.batches
    for _ in range(3):
        before = ahead.batches
        for _ in range(before):
            assert ahead.batches == before  # until what it grew by has come through
            ahead.delivered(waited=True, cost=MB)
    assert ahead.batches == 8 * first


def test_it_rests_where_the_consumer_sets_the_pace():
    ahead = LookAhead("auto", 1000 * MB)
    first = ahead.batches
    for _ in range(20):
        ahead.delivered(waited=False, cost=MB)
    assert ahead.batches == first


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200 * MB)), max_size=60))
def test_the_budget_bounds_it(deliveries):
    budget = 300 * MB
    ahead = LookAhead("auto", budget)
    for waited, cost in deliveries:
        ahead.delivered(waited=waited, cost=cost)
    dearest = max((cost for *_, cost in deliveries), default=0)
    assert ahead.batches >= 1
    assert ahead.batches == 1 or ahead.batches * dearest <= budget
