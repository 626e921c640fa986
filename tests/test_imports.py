"""ADR 1: data flows through the modules in one order, and imports follow it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import foveate

PACKAGE = Path(foveate.__file__).parent
ORDER = (Path(__file__).parents[1] / "docs" / "adr" / "0001-import-order.md").read_text(encoding="utf-8")
# The ADR's own list is the rule: the lines of its code block, first word each.
RANKS = {line.split()[0]: rank for rank, line in enumerate(ORDER.split("```")[1].strip().splitlines())}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, anywhere in it."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports must be absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner.removeprefix("foveate.") in known else str(node.module))
    return {name.removeprefix("foveate.") for name in found if name.startswith("foveate.")}


def test_every_module_has_its_place() -> None:
    assert set(RANKS) == set(modules())


@pytest.mark.parametrize("name", sorted(modules()))
def test_modules_import_only_from_above(name: str) -> None:
    below = {other for other in imported(modules()[name]) if RANKS[other] >= RANKS[name]}
    assert not below, f"{name} imports {below}, which come after it in docs/adr/0001-import-order.md"


def test_the_rule_can_fail(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def late():\n    from foveate.models import tnet\n    import foveate.cli\n")
    assert imported(wrong) == {"models.tnet", "cli"}


def test_nothing_is_unpickled() -> None:
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                assert not names & {"pickle", "cPickle", "dill", "joblib", "shelve"}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("torch", "load"), path
