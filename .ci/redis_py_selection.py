"""Which tests of redis-py are run: all of its sdist, but for the files and tests that docs/outside-tests.md names.

As a pytest plugin it leaves out the tests, says so, and notes in the file $REDIS_PY_USED which rows it used. Over a store of pairs ($REDIS_PY_KIND is
"memory", "devices" or "pool") the tests of the page's third table are run, and must fail as their row says. As a program:

    redis_py_selection.py files DIR asyncio|sync|memory|devices|pool   the test files under DIR/tests to run, in the order of their names
    redis_py_selection.py check DIR USED                 fails if a row of a table leaves out nothing
"""

import os
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "outside-tests.md"

# What is run over stores of pairs.
PAIRS_KINDS = ("memory", "devices", "pool")
PAIRS_FILES = re.compile(r"tests/test_(commands|encoding|hash|pipeline)\.py")


def rows(start):
    """Pattern and reason of the rows of the table whose patterns begin so."""
    for line in PAGE.read_text().splitlines():
        found = re.fullmatch(rf"\| `({start}.*)` \| (.*) \|", line)
        if found:
            yield re.compile(found[1].replace("\\|", "|")), found[2]


def rules():
    return rows("test_")


def file_rules():
    return rows("tests/")


def refusals(kind=None):
    """Of each test that can not pass over a store of pairs, or over one of this kind: class and name, the error that ends it, and the reason."""
    for line in PAGE.read_text().splitlines():
        found = re.fullmatch(r"\| `(?:(memory|devices|pool): )?(Test\w+::test_\w+)` \| `([^`]+)` \| (.*) \|", line)
        if found and (kind is None or found[1] in (None, kind)):
            yield found[2], found[3], found[4]


def test_files(directory):
    found = sorted(pathlib.Path(directory).glob("tests/**/test_*.py"))
    return [str(file.relative_to(directory)) for file in found]


def files(directory, kind):
    left_out = [pattern for pattern, _ in file_rules()]
    for file in test_files(directory):
        is_asyncio = file.startswith("tests/test_asyncio/")
        is_wanted = PAIRS_FILES.fullmatch(file) if kind in PAIRS_KINDS else is_asyncio == (kind == "asyncio")
        if is_wanted and not any(pattern.fullmatch(file) for pattern in left_out):
            yield file


def check(directory, used):
    all_files = test_files(directory)
    idle = [p.pattern for p, _ in file_rules() if not any(p.fullmatch(file) for file in all_files)]
    used = set(pathlib.Path(used).read_text().splitlines())
    idle += [p.pattern for p, _ in rules() if p.pattern not in used]
    idle += [name for name, _, _ in refusals() if name not in used]
    if idle:
        sys.exit("rows of docs/outside-tests.md that leave out nothing: " + ", ".join(idle))


def expect_refusal(item, error, reason):
    """Has a test fail unless it ends in this error."""
    import pytest

    run = item.runtest

    def refused():
        try:
            run()
        except Exception as raised:
            if error in str(raised):
                pytest.xfail(reason)
            raise
        pytest.fail(f"it passes over a store of pairs: take its row out of {PAGE.name}", pytrace=False)

    item.runtest = refused


def expect_refusals(items, used, kind):
    by_name = {name: (error, reason) for name, error, reason in refusals(kind)}
    for item in items:
        owner = getattr(item, "cls", None)
        name = f"{owner.__name__}::{item.originalname}" if owner else None
        if name in by_name:
            expect_refusal(item, *by_name[name])
            used.add(name)


def pytest_collection_modifyitems(config, items):
    kept, left_out, counts, used = [], [], {}, set()
    patterns = list(rules())
    for item in items:
        name = getattr(item, "originalname", item.name)
        rule = next((rule for rule in patterns if rule[0].fullmatch(name)), None)
        (kept if rule is None else left_out).append(item)
        if rule is not None:
            counts[rule[1]] = counts.get(rule[1], 0) + 1
            used.add(rule[0].pattern)
    items[:] = kept
    kind = os.environ.get("REDIS_PY_KIND")
    if kind in PAIRS_KINDS:
        expect_refusals(kept, used, kind)
    config.hook.pytest_deselected(items=left_out)
    config._left_out = counts
    if "REDIS_PY_USED" in os.environ:
        with open(os.environ["REDIS_PY_USED"], "a") as file:
            file.writelines(pattern + "\n" for pattern in used)


def pytest_terminal_summary(terminalreporter, config):
    for why, count in getattr(config, "_left_out", {}).items():
        terminalreporter.write_line(f"left out {count}: {why}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["files", directory, ("asyncio" | "sync" | "memory" | "devices" | "pool") as kind]:
            print("\n".join(files(directory, kind)))
        case ["check", directory, used]:
            check(directory, used)
        case _:
            sys.exit(__doc__)
