"""Room for bytes in flight: who may enter, in which order, and that what leaves makes room."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from geostream.room import Room


def waiting_in(room, *asked):
    """Tasks that wait for (priority, size) each, once all that can enter have."""
    return [asyncio.ensure_future(room.enter(*one)) for one in asked]


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


def entered(tasks):
    return [task.done() for task in tasks]


def test_the_earliest_batch_enters_first_and_nobody_overtakes():
    async def check():
        room = Room(100)
        first = await room.enter(0, 60)
        tasks = waiting_in(room, (3, 10), (1, 50), (2, 40))
        await turns()
        assert entered(tasks) == [True, False, False]  # there was room before the others came
        first.leave()
        await turns()
        assert entered(tasks) == [True, True, True]

    asyncio.run(check())


def test_a_range_larger_than_the_room_is_alone_in_it():
    async def check():
        room = Room(100)
        first = await room.enter(0, 1)
        tasks = waiting_in(room, (0, 1000), (0, 1))
        await turns()
        assert entered(tasks) == [False, False]
        first.leave()
        await turns()
        assert entered(tasks) == [True, False]
        tasks[0].result().leave()
        await turns()
        assert entered(tasks) == [True, True]

    asyncio.run(check())


def test_the_last_part_makes_room_whatever_thread_it_ends_in():
    async def check():
        room = Room(10)
        stay = await room.enter(0, 10)
        stay.split(3)
        (task,) = waiting_in(room, (1, 10))
        for left in range(3):
            await turns()
            assert not task.done(), left
            thread = threading.Thread(target=stay.leave)
            thread.start()
            thread.join()
        await asyncio.wait_for(task, 10)

    asyncio.run(check())


def test_who_gives_up_waiting_takes_no_room():
    async def check():
        room = Room(10)
        stay = await room.enter(0, 10)
        tasks = waiting_in(room, (1, 10), (2, 10), (3, 10))
        await turns()
        tasks[0].cancel()
        await turns()
        stay.leave()
        tasks[1].cancel()  # before it hears that there is room
        await asyncio.wait_for(tasks[2], 10)

    asyncio.run(check())


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 150), st.booleans()), max_size=30))
def test_the_limit_holds_and_all_get_their_turn(asked):
    async def check():
        room, held, most = Room(100), 0, 0

        async def one(priority, size, gives_up):
            nonlocal held, most
            if gives_up:
                task = asyncio.ensure_future(room.enter(priority, size))
                await turns(size % 3)
                if task.cancel():
                    return
                (await task).leave()
                return
            stay = await room.enter(priority, size)
            held += size
            most = max(most, held if held > size else 0)
            await turns(size % 4)
            held -= size
            stay.leave()

        await asyncio.wait_for(asyncio.gather(*(one(*each) for each in asked)), 30)
        assert most <= 100
        assert repr(room) == "<Room 0 of 100 bytes held, 0 waiting>"

    asyncio.run(check())
