"""The lines between tasks and the sequencer, in the place of sockets:
``sequencer.client.ClientSocket``, ``listener.Listener``, and what ``sequencer.epoch`` does with a
socket. Bytes are first in, first out; a line may break, or stand still for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from onceward.kafka.sink.sequencer.frames import HELLO_FRAME_BYTES, parse_hello
from simulation.kernel.scheduler import Process, Sim, Task

FAULTS = {
    "line:broken": "a line between a task and the sequencer breaks: what is on its way may be "
    "lost",
    "line:slow": "what is said on a line takes seconds",
    "line:refused": "a task cannot reach the sequencer",
}
_LATENCY = 0.0002
_SLOW = 40.0
_TICK, _LONGEST_TICK = 0.1, 1.0


class End:
    """One end of a line: bytes come in, and a task may wait for them."""

    __slots__ = ("_arrives", "_sim", "_waiting", "buffer", "closed", "other", "process")

    def __init__(self, sim: Sim, process: Process) -> None:
        self._sim = sim
        self.process = process
        self.other: End
        self.buffer: deque[bytes] = deque()
        self.closed = False
        """Nothing more will come."""
        self._waiting: Task | None = None
        self._arrives = 0.0
        process.on_death.append(self.shut)

    def say(self, data: bytes) -> None:
        sim, lots = self._sim, self._sim.lots
        if self.closed or self.other.closed:
            raise BrokenPipeError("broken pipe")
        if lots.fires("line:broken"):
            if sim.tell is not None:
                sim.tell(
                    sim.now, self.process.name, f"⚡ the line to {self.other.process.name} breaks"
                )
            if lots.below("line:broken", 2):
                self._deliver_later(data)
            self.break_off()
            return
        self._deliver_later(data)

    def _deliver_later(self, data: bytes) -> None:
        sim, lots = self._sim, self._sim.lots
        at = sim.now + _LATENCY * (0.5 + lots.time.random())
        if lots.fires("line:slow"):
            late = lots.below("line:slow", 1000) / 1000 * _SLOW
            if sim.tell is not None:
                sim.tell(
                    sim.now,
                    self.process.name,
                    f"⚡ the line to {self.other.process.name} stands still, {late:.1f} s",
                )
            at += late
        self._arrives = at = max(self._arrives, at)
        sim.after(at - sim.now, self.other.take, data)

    def take(self, data: bytes) -> None:
        if self.closed:
            return
        if data:
            self.buffer.append(data)
        else:
            self.closed = True
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._sim.wake(waiting)

    def wait(self, seconds: float | None = None) -> bool:
        """Until there is something to read; False after so many seconds without."""
        if not self.buffer and not self.closed:
            self._waiting = self._sim.current
            self._sim.park(seconds)
            self._waiting = None
        return bool(self.buffer) or self.closed

    def shut(self) -> None:
        """This end is closed; the other one sees the end of the stream, behind all that was
        said."""
        if self.closed and self.other.closed:
            return
        self.take(b"")
        sim = self._sim
        at = max(self._arrives, sim.now + _LATENCY)
        sim.after(at - sim.now, self.other.take, b"")

    def break_off(self) -> None:
        self.take(b"")
        self._sim.after(max(self._arrives, self._sim.now) - self._sim.now, self.other.take, b"")


class ClientSocket:
    """As :class:`onceward.kafka.sink.sequencer.client.ClientSocket`."""

    def __init__(self, sim: Sim, host: str, port: int, timeout_s: float) -> None:
        sim.alive()
        listener = sim.world.listeners.get((host, port))
        if listener is None or not listener.open or sim.lots.fires("line:refused"):
            sim.sleep(_LATENCY)
            raise ConnectionRefusedError("connection refused")
        self._sim = sim
        self._end = End(sim, sim.here)
        self._end.other = End(sim, listener.process)
        self._end.other.other = self._end
        listener.connect(self._end.other)

    def receive(self) -> bytes | None:
        self._sim.alive()
        end = self._end
        if end.buffer:
            return end.buffer.popleft()
        return b"" if end.closed else None

    def send(self, data: memoryview) -> int:
        self._sim.alive()
        self._end.say(bytes(data))
        return len(data)

    def wait_to_receive(self, seconds: float) -> bool:
        return self._end.wait(max(0.0, seconds))

    def wait_to_send(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        self._end.shut()


class Socket:
    """The driver's end, as much of a socket as ``sequencer.epoch`` uses."""

    __slots__ = ("_end", "_sim")

    def __init__(self, sim: Sim, end: End) -> None:
        self._sim = sim
        self._end = end

    def setblocking(self, flag: bool) -> None:
        """It blocks."""

    def setsockopt(self, *args: Any) -> None:
        """As it is."""

    def recv(self, most: int) -> bytes:
        end = self._end
        end.wait()
        return end.buffer.popleft() if end.buffer else b""

    def sendall(self, data: bytes) -> None:
        self._sim.alive()
        self._end.say(data)

    def shutdown(self, how: int) -> None:
        self._end.shut()

    def close(self) -> None:
        self._end.shut()


class Listener:
    """As :class:`onceward.kafka.sink.sequencer.listener.Listener`: a thread of the driver, and
    the clock of the epoch."""

    def __init__(
        self,
        sim: Sim,
        bind_host: str,
        port: int,
        *,
        admit: Callable[[Any, bytes, Any], bool],
        on_tick: Callable[[float], None],
    ) -> None:
        self._sim = sim
        self._admit = admit
        self._on_tick = on_tick
        self.open = True
        self.process = sim.here
        world = sim.world
        world.last_port += 1
        self.port: int = port or world.last_port
        world.listeners[bind_host, self.port] = self
        self._connecting: deque[End] = deque()
        self._lines: list[End] = []
        self._waiting = False
        self._task = sim.spawn(self.process, self._run, name="sequencer-listener")
        self.process.on_death.append(self._shut)

    def connect(self, end: End) -> None:
        self._connecting.append(end)
        self._lines.append(end)
        # Nobody reads a stranger's words before they are all there, which they are soon or never.
        self._sim.after(_LATENCY * 3, self._wake)

    def _wake(self) -> None:
        if self._waiting and not self._task.done:
            self._sim.wake(self._task)

    def _run(self) -> None:
        sim, tick = self._sim, _TICK
        while self.open:
            self._waiting = True
            self._lines = [end for end in self._lines if not end.closed]
            connected = sim.park(
                tick if self._lines else None
            )  # without a line there is nothing that could be overdue
            tick = _TICK if connected else min(tick * 1.5, _LONGEST_TICK)
            self._waiting = False
            for _ in range(len(self._connecting)):
                self._look_at(self._connecting.popleft())
            self._on_tick(sim.now)

    def _look_at(self, end: End) -> None:
        if not end.buffer:
            if end.closed:
                return
            self._connecting.append(end)  # its words are slow
            return
        hello = end.buffer.popleft()
        if len(hello) > HELLO_FRAME_BYTES:  # more came with it
            end.buffer.appendleft(hello[HELLO_FRAME_BYTES:])
        token, task = parse_hello(bytearray(hello[:HELLO_FRAME_BYTES]))
        if not self._admit(Socket(self._sim, end), token, task):
            end.shut()

    def _shut(self) -> None:
        self.open = False
        self._wake()

    def close(self) -> None:
        self._shut()

    close_soon = close
