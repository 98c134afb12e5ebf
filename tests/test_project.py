"""What must hold of the project as a whole: which module may import which, what importing costs, what files say."""

from __future__ import annotations

import ast
import doctest
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import pth_tracker

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pth_tracker"
ORDER = (
    "errors atomic moments namespaces plain_yaml redaction values runs bounds tracker findings rules traces past model "
    "expressions stats losses vocabulary design checks examine forked executors compare depict codec cache news "
    "writeback render policy engine nightly fingerprints series probes configurations results reading demo cli"
).split()
"""The modules and packages of pth_tracker; each imports only from itself and those before it."""
ADAPTER_MAY_IMPORT = {"errors", "plain_yaml", "values", "runs", "tracker"}
HEAVY = {"numpy", "pandas", "scipy", "yaml", "pydantic", "rich", "matplotlib", "mlflow", "wandb", "torch", "simpleeval"}
MAX_LINES = 400


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def top_level_imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that importing a module imports: not those in its functions, nor those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from top_level_imports(node)


def rooms(path: Path) -> set[str]:
    """The modules or packages directly in pth_tracker that ``path`` imports when it is imported."""
    parts = [name.split(".") for name in top_level_imports(ast.parse(path.read_text(encoding="utf-8")))]
    return {part[1] for part in parts if part[0] == "pth_tracker" and len(part) > 1}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_those_above_it(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert room in ORDER, f"{room} has no place in the order of modules"
    below = {name for name in rooms(path) if name in ORDER and ORDER.index(name) > ORDER.index(room)}
    assert not below, f"{path.relative_to(ROOT)} imports {', '.join(sorted(below))}, which stand below {room}"


@pytest.mark.parametrize("path", modules(ROOT / "adapters"), ids=lambda path: str(path.relative_to(ROOT / "adapters")))
def test_an_adapter_knows_nothing_of_quantities_checks_or_designs(path: Path) -> None:
    assert rooms(path) <= ADAPTER_MAY_IMPORT
    foreign = {
        name.split(".")[0]
        for name in top_level_imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith("pth_tracker_")
    }
    assert foreign <= {path.relative_to(ROOT / "adapters").parts[0]}, "an adapter imports another"


def test_the_direction_test_sees_through_blocks_and_not_into_functions() -> None:
    source = (
        "if TYPE_CHECKING:\n  import t\nif x:\n  import a.b\ntry:\n  from c import d\nexcept E:\n  pass\n"
        "def f():\n  import g\nclass C:\n  import h\n"
    )
    assert list(top_level_imports(ast.parse(source))) == ["a.b", "c", "c.d", "h"]


def test_adapters_is_no_package() -> None:
    assert not (ROOT / "adapters" / "__init__.py").exists(), "a package 'adapters' would collide with another project's"


def loaded_by(code: str) -> set[str]:
    probe = f"import sys; {code}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_costs_nothing_heavy() -> None:
    assert not loaded_by("import pth_tracker") & (HEAVY | {"typer"})


def test_an_audit_reported_as_text_loads_nothing_that_draws() -> None:
    loaded = loaded_by("import pth_tracker.engine, pth_tracker.cli.session, pth_tracker.render.terminal")
    assert not loaded & {"matplotlib", "jinja2"}


def test_the_command_line_loads_only_its_parser() -> None:
    assert not loaded_by("import pth_tracker.cli") & HEAVY


@pytest.mark.parametrize("adapter", ["pth_tracker_files", "pth_tracker_mlflow", "pth_tracker_wandb"])
def test_an_adapters_manifest_loads_no_sdk(adapter: str) -> None:
    assert not loaded_by(f"import {adapter}") & {"mlflow", "wandb", "pandas", "tensorboard", "sqlalchemy"}


def test_public_names_are_sorted_documented_and_loaded_on_use() -> None:
    names = pth_tracker.__all__
    assert names == sorted(names) and set(names) <= set(dir(pth_tracker))
    for name in names:
        value = getattr(pth_tracker, name)
        documented = getattr(value, "__doc__", None) if callable(value) else _constant_doc(name)
        assert documented and documented.strip(), f"pth_tracker.{name} has no documentation"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pth_tracker.nothing
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", pth_tracker.__version__)


def _constant_doc(name: str) -> str:
    """The string that follows the assignment of ``name`` in its module."""
    body = ast.parse((PACKAGE / "findings.py").read_text(encoding="utf-8")).body
    for node, after in zip(body, body[1:]):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == name and isinstance(after, ast.Expr):
            return str(ast.literal_eval(after.value))
    return ""


@pytest.mark.parametrize(
    "path",
    [path for path in modules(PACKAGE) if ">>> " in path.read_text(encoding="utf-8")],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_examples_in_docstrings_hold(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    tried = doctest.testmod(import_module(name))
    assert tried.attempted and not tried.failed


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


HOSTS = [".".join(parts) for parts in (("py" + "pi", "org"), ("pythonhos" + "ted", "org"), ("npm" + "js", "org"))]
HOSTS += ["deb." + "debian." + "org", "registry." + "npm" + "js", "crates" + ".io"]
MACHINE_PATH = re.compile(rf"(?<![\w.])/(?:{'work'}|{'root'}|{'farm'})/")


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    bad = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", "replace")
        bad += [f"{path.relative_to(ROOT)}: {host}" for host in HOSTS if host in text.lower()]
        bad += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert not bad, "\n".join(bad)


def test_no_module_is_too_long() -> None:
    long = {}
    for path in [*modules(PACKAGE), *modules(ROOT / "adapters")]:
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MAX_LINES:
            long[str(path.relative_to(ROOT))] = lines
    if long:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"over {MAX_LINES} lines, each still one room?: {long}", stacklevel=1)
    assert not {name: lines for name, lines in long.items() if lines > 1.25 * MAX_LINES}
