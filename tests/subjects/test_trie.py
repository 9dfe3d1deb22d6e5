"""Filters are found among many as if each had been tried."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.subjects import FilterTrie, matches, overlaps

TOKENS = st.sampled_from(["a", "b", "c", "a>", "*b"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
FILTERS = st.tuples(
    st.lists(TOKENS | st.just("*"), max_size=3), TOKENS | st.sampled_from(["*", ">"])
).map(lambda parts: ".".join([*parts[0], parts[1]]))


@given(st.lists(FILTERS, max_size=12), st.lists(SUBJECTS, max_size=6), FILTERS, st.data())
def test_the_filters_that_are_found_are_those_that_match_or_overlap(
    filters: list[str], subjects: list[str], other: str, data: st.DataObject
) -> None:
    trie: FilterTrie[tuple[int, str]] = FilterTrie()
    known = set(enumerate(filters))
    for number, filter in known:
        trie.add(filter, (number, filter))
    gone = data.draw(st.sets(st.sampled_from(sorted(known)))) if known else set()
    for number, filter in gone:
        trie.remove(filter, (number, filter))
    known -= gone
    for subject in subjects:
        found = trie.matching(subject)
        assert len(found) == len(set(found))
        assert set(found) == {each for each in known if matches(each[1], subject)}
    found = list(trie.overlapping(other))
    assert len(found) == len(set(found))
    assert set(found) == {each for each in known if overlaps(each[1], other)}
    for number, filter in known:
        trie.remove(filter, (number, filter))
    assert trie._root == {}
