"""A user of `cenote top` at a pseudo-terminal.

Usage: top.py CASE PROGRAM [ARGUMENT...]. Runs the program on a terminal of its own, presses keys,
and checks what the screen shows, how the program ends, and that the terminal is as before.
"""

import errno
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time

LEAVE = "\x1b[?1049l"
TIMEOUT = 60


class Terminal:
    """A program on a terminal."""

    def __init__(self, program, columns=100, lines=30):
        self.master, self.slave = os.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.text = ""
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(self.slave, fd)
            os.environ["TERM"] = "xterm"
            os.execv(program[0], program)

    def resize(self, columns, lines):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, seconds):
        """Reads what was written for some time, or until there is something."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        try:
            more = os.read(self.master, 1 << 16)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        self.text += more.decode(errors="replace")
        return bool(more)

    def screen(self):
        """Returns the lines of the last whole screen."""
        screens = self.text.split("\x1b[H")
        whole = [screen for screen in screens if "\x1b[J" in screen]
        if not whole:
            return []
        shown = whole[-1].split("\x1b[J")[0]
        return [line.replace("\x1b[K", "") for line in shown.split("\r\n")]

    def until(self, what, holds):
        """Waits until the screen is as wanted."""
        end = time.monotonic() + TIMEOUT
        while not holds(self.screen()):
            assert time.monotonic() < end, f"never: {what}\n" + "\n".join(self.screen())
            self.read(0.1)
        return self.screen()

    def until_shown(self, part):
        return self.until(part, lambda screen: any(part in line for line in screen))

    def press(self, keys):
        os.write(self.master, keys)

    def attributes(self):
        return termios.tcgetattr(self.slave)

    def is_restored(self):
        return self.attributes() == self.before and self.text.rstrip().endswith(LEAVE)

    def end(self, seconds=TIMEOUT):
        """Waits for the end of the program, and returns its status."""
        end = time.monotonic() + seconds
        while True:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            assert time.monotonic() < end, "the program does not end"
        while self.read(0.1):
            pass
        return os.waitstatus_to_exitcode(status)

    def ends_restored(self, status, seconds=TIMEOUT):
        found = self.end(seconds)
        assert found == status, f"status {found} instead of {status}: {self.text[-500:]!r}"
        assert self.attributes() == self.before, "the terminal has other attributes"
        assert LEAVE in self.text, f"the screen was not left: {self.text[-200:]!r}"
        assert "\x1b[H" not in self.text.split(LEAVE)[-1], "a screen after the last one"


def keys(program):
    """Keys sort, pause and quit; the window changes its size."""
    top = Terminal(program)
    screen = top.until_shown("DEVICE")
    assert screen[0].startswith("cenote top, ") and "by operations" in screen[0], screen
    assert top.attributes() != top.before, "raw mode"
    top.until_shown("t: ONLINE")
    top.until_shown(" s, by operations")
    for key, part in [(b"s", "by reads"), (b"s", "by writes"), (b"S", "by reads"), (b"r", "reversed")]:
        top.press(key)
        top.until_shown(part)
    top.press(b" ")
    top.until_shown("PAUSED")
    top.press(b"\x1b[A")
    for columns, lines in [(30, 4), (1, 1), (200, 60), (100, 30)]:
        top.resize(columns, lines)
        longest = lambda screen: max(map(len, screen), default=0)
        fits = lambda screen: 0 < len(screen) <= lines and longest(screen) <= columns
        wide = lambda screen: longest(screen) > 30 if columns > 30 else True
        top.until(f"a screen of {columns} x {lines}", lambda screen: fits(screen) and wide(screen))
    top.press(b"p")
    top.until("no pause", lambda screen: screen and "PAUSED" not in screen[0])
    top.press(b"q")
    top.ends_restored(0, 5)


def signals(program):
    """The terminal is restored after each signal, and while the program is stopped."""
    for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]:
        top = Terminal(program)
        top.until_shown("DEVICE")
        os.kill(top.pid, number)
        top.ends_restored(128 + number)
    top = Terminal(program)
    top.until_shown("DEVICE")
    top.press(b"\x03")
    top.ends_restored(130)
    for stop in [lambda top: top.press(b"\x1a"), lambda top: os.kill(top.pid, signal.SIGTSTP)]:
        top = Terminal(program)
        top.until_shown("DEVICE")
        stop(top)
        pid, status = os.waitpid(top.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        while top.read(0.2):
            pass
        assert top.is_restored(), repr(top.text[-200:])
        top.text = ""
        os.kill(top.pid, signal.SIGCONT)
        top.until_shown("DEVICE")
        top.press(b"q")
        top.ends_restored(0)
    # A terminal that is gone.
    top = Terminal(program)
    top.until_shown("DEVICE")
    os.close(top.slave)
    os.close(top.master)
    end = time.monotonic() + TIMEOUT
    while os.waitpid(top.pid, os.WNOHANG)[0] == 0:
        assert time.monotonic() < end, "the program outlives its terminal"
        time.sleep(0.05)


def panic(program):
    """A panic restores the terminal before its message is printed."""
    top = Terminal(program)
    top.ends_restored(101)
    after = top.text.split(LEAVE)[-1]
    assert "a test ordered this panic" in top.text.split(LEAVE, 1)[1], repr(after)


def daemon(program):
    """The daemon is silent, goes on, ends, and comes back; the test's input says when."""
    top = Terminal(program)
    top.until_shown("DEVICE")
    for part in ["does not answer", "DEVICE", "no daemon is running", "DEVICE"]:
        print(part, flush=True)
        assert sys.stdin.readline() == "done\n"
        if part == "DEVICE":
            is_well = lambda screen: not any("still trying" in line for line in screen)
            top.until("figures again", lambda screen: is_well(screen) and len(screen) > 3)
        else:
            top.until_shown(part)
    print("quit", flush=True)
    assert sys.stdin.readline() == "done\n"
    top.until_shown("does not answer")
    began = time.monotonic()
    top.press(b"q")
    top.ends_restored(0)
    assert time.monotonic() - began < 2, "q waited for the daemon"


if __name__ == "__main__":
    {case.__name__: case for case in [keys, signals, panic, daemon]}[sys.argv[1]](sys.argv[2:])
