"""Records that several threads of an agent read first, at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

READ_AT_ONCE = """
import sys, threading
import msgspec
from headrace.groups.homes import GroupRecord, decode_group
from headrace.regions.records import LinkMember, LinkRecord, decode_link

link = LinkRecord(stream="orders", members=(LinkMember(region="us", catalog="us"),))
group = GroupRecord(key="orders.billing", family="static", streams=("orders",), config=b"")
read = {
    "link": lambda: decode_link("orders", msgspec.json.encode(link)),
    "group": lambda: decode_group(group.key, msgspec.msgpack.encode(group)),
}[sys.argv[1]]
looks = 0

def another_thread_reads(frame, event, arg):
    # msgspec looks at a type for the first time; what it knows of the outer one is half made.
    global looks
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        looks += 1
        if looks == 2:
            other = threading.Thread(target=read)
            other.start()
            other.join()

sys.setprofile(another_thread_reads)
read()
sys.setprofile(None)
"""


@pytest.mark.parametrize("kind", ["link", "group"])
def test_two_threads_that_read_a_record_first_at_once_do_not_crash(kind: str) -> None:
    ended = subprocess.run([sys.executable, "-c", READ_AT_ONCE, kind], check=False, timeout=60)
    assert ended.returncode == 0
