"""Check the naming and docstring rules of CONTRIBUTING.md: `python tools/check_names.py`.

The check fails where a function is named by a bare participle, where a docstring opens with a
relative pronoun, where a comment opens with "of", and where two modules of the packages, or of an
app and the packages, have a public class or function of one name.
It also prints the share of one-word function names in each source tree.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = ("packages/attention-core", "packages/experiment-kit", "apps", "benchmarks", "tools")
IRREGULAR = {
    *("begun", "bound", "built", "chosen", "drawn", "found", "given", "gone", "held", "hidden"),
    *("kept", "known", "laid", "made", "said", "sat", "seen", "sent", "shown", "sped", "spent"),
    *("spoken", "stood", "taken", "thrown", "told", "written"),
}
FIELD_TERMS = {"embed", "feed", "seed", "speed"}  # end in -ed, but are no participles
PACKAGES = ("packages/attention-core", "packages/experiment-kit")
APPS = tuple(f"apps/{app}" for app in ("graph", "nlp", "sequence", "speech", "vision"))
INTERFACES = {"is_cross_attention", "write_dataset"}  # one in each library or generator
RELATIVE = re.compile(r"(What|How|Where|Which|Whether|That)\b")
FRAGMENT = re.compile(r"#+\s*((that|those) )?of\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_participle(name: str) -> bool:
    """Return True for a function name that is one past participle.

    >>> [is_participle(name) for name in ("_scheduled", "told", "seed", "load_checkpoint")]
    [True, True, False, False]
    """
    word = name.strip("_")
    regular = word.endswith("ed") and len(word) > 4 and word not in FIELD_TERMS
    return "_" not in word and (regular or word in IRREGULAR)


def is_one_word(name: str) -> bool:
    """Return True for a name without an inner underscore; special methods do not count.

    >>> [is_one_word(name) for name in ("_fit", "__init__", "load_checkpoint")]
    [True, False, False]
    """
    return not name.startswith("__") and "_" not in name.strip("_")


def list_functions(tree: ast.Module) -> Iterator[Function]:
    """Yield every function and method of a module."""
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def find_violations(path: Path) -> Iterator[str]:
    """Yield one line for each function name and each docstring of a file that breaks a rule."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    for node in list_functions(tree):
        if is_participle(node.name):
            yield f"{where}:{node.lineno}: name {node.name!r} with a verb and its object"
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            doc = ast.get_docstring(node) or ""
            if RELATIVE.match(doc):
                line = getattr(node, "lineno", 1)
                yield f"{where}:{line}: open the docstring with a verb, not {doc.split()[0]!r}"


def find_fragments(path: Path) -> Iterator[str]:
    """Yield one line for each comment that opens with "of"; the next line of a comment may."""
    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    last = 0  # row of a comment that another line may continue
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                row, is_line = token.start[0], token.line.lstrip().startswith("#")
                if FRAGMENT.match(token.string) and not (is_line and row == last + 1):
                    yield f"{where}:{row}: say what the comment is about, not 'of ...'"
                last = row if is_line else 0


def find_shared_names(files: list[Path]) -> Iterator[str]:
    """Yield one line for each public class or function that a second module defines too.

    An attribute of an adapter, which all libraries have, is one function a library.
    """
    first: dict[str, Path] = {}
    for path in files:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                other = first.setdefault(node.name, path)
                if other != path and node.name not in INTERFACES:
                    where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                    yield f"{where}:{node.lineno}: {node.name!r} is a name of {other.name} too"


def summarize_names(files: list[Path]) -> str:
    """Return the number of functions, and the shares of one-word names and of participles."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    names = [node.name for tree in trees for node in list_functions(tree)]
    names = [name for name in names if not name.startswith("__")]
    one_word, participles = sum(map(is_one_word, names)), sum(map(is_participle, names))
    total = max(len(names), 1)
    return (
        f"{len(files)} files, {len(names)} functions, {one_word / total:.0%} one-word names, "
        f"{participles / total:.1%} participles"
    )


def main() -> int:
    """Print the shares of each tree and all violations; return 1 where there is one."""
    violations: list[str] = []
    for tree in TREES:
        files = sorted((ROOT / tree).rglob("*.py"))
        violations += [line for path in files for line in find_violations(path)]
        print(f"{tree}: {summarize_names(files)}")
    for tree in (*TREES, "tests", "docs"):
        for path in sorted((ROOT / tree).rglob("*.py")):
            violations += find_fragments(path)
    for app in APPS:  # apps do not import each other, and may share a name
        trees = (sorted((ROOT / tree / "src").rglob("*.py")) for tree in (*PACKAGES, app))
        violations += find_shared_names([path for files in trees for path in files])
    print("\n".join(dict.fromkeys(violations)), end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
