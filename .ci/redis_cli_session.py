"""Sits at a terminal before redis-cli: its handshake, its help from COMMAND DOCS, a command, and out."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

LINES = [("help hset\r", r"summary:"), ("help hr.create\r", r"Declares a table"), ("get greeting\r", r'"hello"')]


def main(port):
    pid, terminal = pty.fork()
    if pid == 0:
        # Without a size redis-cli would ask the terminal for it and wait.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.environ["TERM"] = "xterm"
        os.execvp("redis-cli", ["redis-cli", "-p", port])
    seen = ""

    def wait_for(pattern):
        nonlocal seen
        deadline = time.monotonic() + 10
        while not re.search(pattern, seen):
            ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
            if not ready:
                sys.exit(f"redis-cli did not show {pattern!r} but {seen!r}")
            seen += os.read(terminal, 65536).decode(errors="replace")
        seen = ""

    wait_for(r"> ")
    for line, answer in LINES:
        os.write(terminal, line.encode())
        # Input that comes before the next prompt is thrown away: redis-cli flushes it when it sets its terminal.
        wait_for(answer + r"(?s:.*)> ")
    os.write(terminal, b"\x04")
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


main(sys.argv[1])
