"""Docstrings, comments and pages name only what exists.

Checked are roles of Sphinx, names below ``celery_delayq``, scripts, paths of files, and names that
a text says to be in a file. Every file is read and parsed once.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
#: The classes around a docstring, the innermost first.
Classes = tuple[ast.ClassDef, ...]

ROLE = re.compile(r":(?:class|meth|func|attr|data|mod|exc):`([^`]+)`")
DOTTED = re.compile(r"(?<![\w./+:])celery_delayq(?:\.\w+)+")
#: A script by its folder and name, such as ``dispatch/promote``.
SCRIPT_FOLDERS = [
    path.name for path in (ROOT / "celery_delayq/store/lua").iterdir() if path.is_dir()
]
SCRIPT = re.compile(rf"`((?:{'|'.join(SCRIPT_FOLDERS)})(?:/\w+)+)`")
PATH = re.compile(r"(?<![\w./*<>{}~:-])(?:\.\./)?([\w-][\w.-]*(?:/[\w.-]+)*\.(?:py|lua|md))\b")
#: Names that a file is said to have, such as "`cancel` and `take` in `consumer.py`".
NAMES_IN_FILE = re.compile(
    r"((?:`+[\w.]+`+(?:,|\s+and|\s+or)?\s+)+)(?:in|of)\s+`+([\w/]+\.(?:py|lua))`+"
)
#: A class of ours with one of its methods or attributes.
MEMBER = re.compile(r"`([A-Z][a-z]\w*)\.(\w+)`")
#: Pages about the code, in which every class is one of ours.
CODE_PAGES = {f"docs/{name}.md" for name in ("design", "keys", "internals")}
#: How a Lua file defines a name.
IN_LUA = r"^\s*(?:local (?:function )?(?:\w+, )*|function ){}\b"
COMMENT = {"py": re.compile(r"#:? (.*)"), "lua": re.compile(r"--+ (.*)")}

#: Names of tasks, of formats, and of files of a user's app, which look like our own.
EXAMPLES = {
    *("celery_delayq.webhook.post", "celery_delayq.schedule", "celery_delayq.dead_letters"),
    *("celery_delayq.archive", "celery_delayq.Filter", "celery_delayq.module"),
    *("celery.py", "settings.py", "shop.py", "test_shop.py", "orders/tasks.py"),
    *("mysite/celery.py", "mysite/settings.py", "mysite/__init__.py"),
}


class Module:
    """What a module of ours defines.

    Attributes
    ----------
    tree : ast.Module
    names : dict[str, ast.ClassDef | str | None]
        By name: a class, the origin of an import, or None for anything else.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.names: dict[str, ast.ClassDef | str | None] = {}
        for node in walk_statements(tree):
            if isinstance(node, ast.ClassDef):
                self.names[node.name] = node
            elif isinstance(node, Definition):
                self.names[node.name] = None
            elif isinstance(node, ast.Import):
                self.names.update({(each.asname or each.name): each.name for each in node.names})
            elif isinstance(node, ast.ImportFrom):
                origin = f"{node.module or ''}."
                self.names.update(
                    {(each.asname or each.name): origin + each.name for each in node.names}
                )
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                self.names.update(dict.fromkeys(names_in(node)))


def walk_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, also those below ``if``, ``try`` and ``with``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if isinstance(child, ast.If | ast.Try | ast.With):
                yield from walk_statements(child)
        elif isinstance(child, ast.ExceptHandler):
            yield from walk_statements(child)


def names_in(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    """Yield the names that a statement assigns to."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for each in ast.walk(target):
            if isinstance(each, ast.Name):
                yield each.id


@cache
def files() -> dict[str, str]:
    """Return the text of each file with code or pages, by its path."""
    command = ["git", "ls-files", "*.py", "*.lua", "README.md", "docs/*.md", "*/README.md"]
    paths = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = [path for path in paths.stdout.split() if (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text("utf-8") for path in found}


@cache
def modules() -> dict[str, Module]:
    """Return our modules by their dotted names."""
    found = {}
    for path, text in files().items():
        if path.endswith(".py"):
            found[module_name(path)] = Module(ast.parse(text))
    return found


def module_name(path: str) -> str:
    """Return the dotted name of the module in a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def paths() -> frozenset[str]:
    """Return the path of each file and each of its ends, such as ``store/keys.py``."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    parts = [path.split("/") for path in lines.splitlines()]
    return frozenset("/".join(each[start:]) for each in parts for start in range(len(each)))


def docstrings(node: ast.AST, classes: Classes = ()) -> Iterator[tuple[str, Classes]]:
    """Yield each docstring in a module with the classes around it, the innermost first."""
    if isinstance(node, ast.Module | Definition) and (text := ast.get_docstring(node, clean=False)):
        yield text, classes
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from docstrings(child, (child, *classes))
        elif isinstance(child, Definition) or hasattr(child, "body"):
            yield from docstrings(child, classes)


def imported(name: str) -> bool:
    """Return whether there is a module, or something in a module, of that name."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ImportError:
            continue
        for part in parts[size:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def has_member(module: Module, cls: ast.ClassDef, name: str) -> bool:
    """Return whether a class, or a class that it inherits from, has an attribute or method."""
    return name in members_of(cls) or any(
        resolves(module, (), f"{ast.unparse(base)}.{name}") for base in cls.bases
    )


@cache
def members_of(cls: ast.ClassDef) -> frozenset[str]:
    """Return the methods of a class, and the attributes that it or its methods assign to."""
    found = set()
    for node in ast.walk(cls):
        if isinstance(node, Definition):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node in cls.body:
            found.update(names_in(node))
    return frozenset(found)


def resolves(module: Module, classes: Classes, target: str) -> bool:
    """Return whether a name means something in a module, or inside of some of its classes."""
    head, _, rest = target.partition(".")
    head = head.partition("[")[0]
    for cls in classes:
        if has_member(module, cls, head) or head == cls.name:
            return not rest or (head == cls.name and has_member(module, cls, rest))
    if head not in module.names:
        return hasattr(builtins, head) or is_global(target)
    found = module.names[head]
    if not rest or found is None:
        return True
    if isinstance(found, ast.ClassDef):
        return has_member(module, found, rest)
    return is_global(f"{found}.{rest}")


@cache
def is_global(name: str) -> bool:
    """Return whether a full name is that of a module, or of something in one."""
    path, rest = name, ""
    while path:
        if module := modules().get(path):
            return not rest or resolves(module, (), rest)
        path, _, last = path.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    return imported(name)


def names_something(module: Module, classes: Classes, target: str) -> bool:
    """Return whether the target of a role in a module, inside of some of its classes, exists."""
    target = target.removeprefix("~").removesuffix("()")
    if not target.startswith("."):
        return resolves(module, classes, target) or is_global(target)
    # As Sphinx: a name that begins with a dot is found by its end.
    end, _, name = target.rpartition(".")
    paths = [path for path in modules() if f".{path}".endswith(end)]
    return any(is_global(f"{path}.{name}") for path in [*paths, f"celery_delayq{end}"])


def wrong_roles(path: str, text: str) -> Iterator[str]:
    """Yield the roles in docstrings and comments of a module that name nothing."""
    module = modules()[module_name(path)]
    # A comment may stand in any of the classes.
    around = tuple(each for each in module.names.values() if isinstance(each, ast.ClassDef))
    comments = ((comment, around) for comment in COMMENT["py"].findall(text))
    for part, classes in (*docstrings(module.tree), *comments):
        for target in ROLE.findall(part):
            if not names_something(module, classes, target):
                yield target


def prose(path: str, text: str) -> str:
    """Return the text of a file that people read: a page, or docstrings and comments."""
    suffix = path.rpartition(".")[2]
    if suffix == "md":
        return text
    parts = COMMENT[suffix].findall(text)
    if suffix == "py":
        parts += [each for each, _ in docstrings(modules()[module_name(path)].tree)]
    return "\n".join(parts)


def wrong_names(text: str) -> Iterator[str]:
    """Yield the names of modules, scripts and files in a text that are not there."""
    for name in DOTTED.findall(text):
        if name not in EXAMPLES and not is_global(name):
            yield name
    for name in SCRIPT.findall(text):
        if not {f"lua/{name}.lua", f"{name}.py", f"{name}/__init__.py"} & paths():
            yield name
    for name in PATH.findall(text):
        if name not in EXAMPLES and name not in paths():
            yield name
    for names, end in NAMES_IN_FILE.findall(text):
        for name in re.findall(r"`([\w.]+)`", names):
            if not any(defines(path, name) for path in files() if f"/{path}".endswith(f"/{end}")):
                yield f"{name} in {end}"


def defines(path: str, name: str) -> bool:
    """Return whether a file of Python or Lua defines a name, or a class of it has this member."""
    if path.endswith(".lua"):
        return re.search(IN_LUA.format(name), files()[path], re.MULTILINE) is not None
    module = modules()[module_name(path)]
    if "." in name:
        return resolves(module, (), name)
    classes = [each for each in module.names.values() if isinstance(each, ast.ClassDef)]
    is_here = name in module.names and not isinstance(module.names[name], str)
    return is_here or any(name in members_of(each) for each in classes)


def wrong_members(text: str) -> Iterator[str]:
    """Yield the members of classes in a page about the code that no class of ours has."""
    ours = [each for name, each in modules().items() if name.startswith("celery_delayq.")]
    for cls, member in MEMBER.findall(text):
        found = [(each, each.names[cls]) for each in ours if cls in each.names]
        if not any(
            isinstance(one, ast.ClassDef) and has_member(m, one, member) for m, one in found
        ):
            yield f"{cls}.{member}"


def test_every_role_names_something() -> None:
    wrong = [
        f"{path}: {target}"
        for path, text in files().items()
        if path.endswith(".py")
        for target in wrong_roles(path, text)
    ]

    assert wrong == []


def test_every_module_script_and_file_that_a_text_names_exists() -> None:
    wrong = [
        f"{path}: {name}"
        for path, text in files().items()
        if not path.endswith("test_references.py")
        for name in wrong_names(prose(path, text))
    ]

    assert wrong == []


def test_every_method_that_a_page_about_the_code_names_exists() -> None:
    wrong = [f"{page}: {name}" for page in CODE_PAGES for name in wrong_members(files()[page])]

    assert wrong == []


def test_what_does_not_exist_is_found() -> None:
    module = modules()["celery_delayq.store.store"]
    [store] = [each for each in module.tree.body if isinstance(each, ast.ClassDef)]

    assert names_something(module, (store,), "next_queue")
    assert names_something(module, (), "Store.next_queue")
    assert names_something(module, (), ".schedule.client.Schedule.schedule_many")
    assert not names_something(module, (store,), "next_due")
    assert not names_something(module, (), "~celery_delayq.store.store.Store.next_due")
    text = "celery_delayq.store.none, `limits/none`, `include/leases/none`, none.lua"
    text += ", ``none_of`` in ``store/keys.py``"
    text += ", `take_queue`, `take_duty` and `take_none` of `dispatch/duty.lua`"
    text += ", `Layout.step_of` and `Layout.none` in `store/keys.py`"
    assert [*wrong_names(text)] == [
        *("celery_delayq.store.none", "limits/none", "include/leases/none", "none.lua"),
        "none_of in store/keys.py",
        *("take_queue in dispatch/duty.lua", "take_none in dispatch/duty.lua"),
        "Layout.none in store/keys.py",
    ]
    assert [*wrong_members("`Layout.step_of`, `Layout.none`, `None_.of`")] == [
        *("Layout.none", "None_.of"),
    ]
