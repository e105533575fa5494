"""The recency order over node ids."""

from __future__ import annotations

from racer_local.drafting.racer.lru import RecencyList


def test_an_empty_list_has_no_oldest_and_no_newest() -> None:
    order = RecencyList(3)
    assert (order.oldest, order.newest, list(order)) == (0, 0, [])


def test_insertion_makes_the_newest() -> None:
    order = RecencyList(3)
    for node in (2, 1, 3):
        order.insert_after(node)
    assert list(order) == [3, 1, 2]
    assert (order.newest, order.oldest) == (3, 2)


def test_insertion_behind_a_member_puts_it_right_there() -> None:
    order = RecencyList(4)
    order.insert_after(1)
    order.insert_after(2)
    order.insert_after(3, 2)
    order.insert_after(4, 1)
    assert list(order) == [2, 3, 1, 4]


def test_moving_keeps_all_members() -> None:
    order = RecencyList(3)
    for node in (1, 2, 3):
        order.insert_after(node)
    order.move_after(1)
    assert list(order) == [1, 3, 2]
    order.move_after(1, 2)
    assert list(order) == [3, 2, 1]
    order.move_after(1, 2)
    assert list(order) == [3, 2, 1]


def test_a_removed_id_can_come_back() -> None:
    order = RecencyList(2)
    order.insert_after(1)
    order.insert_after(2)
    order.remove(1)
    assert list(order) == [2]
    order.insert_after(1)
    assert list(order) == [1, 2]
    order.clear()
    assert list(order) == []


def test_memory_does_not_depend_on_use() -> None:
    order = RecencyList(100)
    size = order.size_bytes()
    for node in range(1, 101):
        order.insert_after(node)
    assert order.size_bytes() == size
