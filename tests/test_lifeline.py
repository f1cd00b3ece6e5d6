"""A child does not outlive its parent, however the parent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from edgekit.lifeline import die_with_parent
from tests.waiting import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere: Linux asks its kernel")

CHILD = r"""
import os, signal, sys, time
from edgekit.lifeline import die_with_parent
def leave(number, frame):
    os.write(1, b"told %d\n" % number)  # print may be under way when the signal comes
    os._exit(7)
signal.signal(signal.SIGTERM, leave)
die_with_parent(int(sys.argv[1]), *(int(word) for word in sys.argv[2:]))
os.write(1, b"up %d\n" % os.getpid())
time.sleep(30)
"""
PARENT = """
import os, subprocess, sys

child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), *sys.argv[2:]])
child.wait()
"""


def is_alive(pid: int) -> bool:
    """A child that nobody has waited for yet counts as dead."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def family(*how: int) -> tuple[subprocess.Popen[str], int]:
    """(a parent, the process id of its child), both up; the child's words go where the parent's do."""
    command = [sys.executable, "-c", PARENT, CHILD, *(str(int(one)) for one in how)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    word, pid = parent.stdout.readline().split()
    assert word == "up"
    return parent, int(pid)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_is_told_when_its_parent_dies(death: signal.Signals) -> None:
    parent, child = family()
    assert is_alive(child)
    parent.send_signal(death)
    out, _ = parent.communicate(timeout=10)  # ends when the child, too, has let go of the pipe
    assert out == f"told {int(signal.SIGTERM)}\n"
    assert until(lambda: not is_alive(child))


def test_a_child_that_would_not_listen_can_be_killed_instead() -> None:
    parent, child = family(signal.SIGKILL)
    parent.kill()
    out, _ = parent.communicate(timeout=10)
    assert out == "", "SIGKILL leaves no time for words"
    assert until(lambda: not is_alive(child))


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    """The parent died between fork and the child's first line: the kernel would never tell."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    began_s = time.monotonic()
    run = subprocess.run([sys.executable, "-c", CHILD, str(gone.pid)], capture_output=True, text=True, timeout=20)
    assert run.returncode == 1
    assert run.stdout == ""
    assert time.monotonic() - began_s < 10


def test_a_living_parent_is_left_alone() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(os.getpid())], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().startswith("up")
    assert child.poll() is None
    child.kill()
    child.communicate()


def test_elsewhere_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    die_with_parent(-1)  # on Linux it would end this very process: nobody's parent is that
