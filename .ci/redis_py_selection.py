"""A pytest plugin that leaves out the tests listed in docs/outside-tests.md, and says so."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "outside-tests.md"


def rules():
    for line in PAGE.read_text().splitlines():
        found = re.fullmatch(r"\| `(test_.*)` \| (.*) \|", line)
        if found:
            yield re.compile(found[1].replace("\\|", "|")), found[2]


def pytest_collection_modifyitems(config, items):
    kept, left_out, counts = [], [], {}
    for item in items:
        name = getattr(item, "originalname", item.name)
        why = next((why for pattern, why in rules() if pattern.fullmatch(name)), None)
        (kept if why is None else left_out).append(item)
        if why is not None:
            counts[why] = counts.get(why, 0) + 1
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)
    config._left_out = counts


def pytest_terminal_summary(terminalreporter, config):
    for why, count in getattr(config, "_left_out", {}).items():
        terminalreporter.write_line(f"left out {count}: {why}")
