"""Every command a README shows is one: its flags parse with the real parser, its target exists."""

import argparse
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import ROOT, load_variant

READMES = [ROOT / "README.md", *sorted(ROOT.glob("*_BCQ/README.md"))]
DOCS = sorted((ROOT / "docs").glob("*.md"))  # they speak from the root


class Command(NamedTuple):
    """One command of a README: the folder it is typed in, and its words."""

    cwd: Path
    words: list[str]


def fenced_lines(text: str) -> Iterator[tuple[bool, str]]:
    """The lines of fenced blocks, continued ones joined; True with the first line of a block."""
    inside = first = False
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.lstrip().startswith("```"):
            inside = first = not inside
        elif inside:
            yield first, line.strip().removeprefix("$ ")
            first = False


def commands(text: str, folder: Path) -> list[Command]:
    """The commands that begin with `python` or `make`, in the folder that `cd` lines led to.

    A `cd` that leads nowhere is one of them.
    """
    found, cwd = [], folder
    for first, line in fenced_lines(text):
        cwd = folder if first else cwd
        # A shell loop's variable stands for a number.
        plain = re.sub(r"\$\{?\w+\}?", "0", line.replace("$algorithm", "BCQ"))
        if not re.match(r"(python|make|cd) ", plain):
            continue
        lexer = shlex.shlex(plain, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in {"&&", "||", "|", ";", "&"}:
                words.append(word)
                continue
            if words[:1] == ["cd"]:
                # A folder's README may speak from the repository root.
                places = [place for place in (cwd, ROOT) if (place / words[1]).is_dir()]
                if places:
                    cwd = (places[0] / words[1]).resolve()
                else:
                    found.append(Command(cwd, words))
            elif words and words[0] in {"python", "make"}:
                found.append(Command(cwd, words))
            words = []
    return found


class Parsed(Exception):
    """The parser has accepted its arguments."""


def load_script(path: Path) -> Any:
    """The module of a script, as it sees itself."""
    if path.parent != ROOT and path.parent.name.endswith("_BCQ"):
        return getattr(load_variant(path.parent.name), path.stem)
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def check_python(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the script's `main` up to where its parser has accepted the words."""
    name, *argv = command.words[1:]
    if name == "-m":
        assert importlib.util.find_spec(argv[0]), f"there is no module {argv[0]}"
        return
    path = (command.cwd / name).resolve()
    assert path.is_file(), f"{path} does not exist"
    module = load_script(path)
    real = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> None:
        real(self, args, namespace)
        raise Parsed

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse)
        patched.setattr(sys, "argv", [name, *argv])
        with pytest.raises(Parsed):
            module.main()


def check_make(command: Command) -> None:
    """Every word that is no variable and no option must be a target."""
    makefile = (command.cwd / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+)\s*:(?!=)", makefile, re.MULTILINE))
    wanted = [word for word in command.words[1:] if "=" not in word and not word.startswith("-")]
    assert set(wanted) <= targets, f"make has no {set(wanted) - targets}"


def check(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises where a command would not be understood."""
    if command.words[0] == "make":
        check_make(command)
    elif command.words[0] == "cd":
        raise AssertionError(f"{command.words} leads nowhere from {command.cwd}")
    else:
        check_python(command, monkeypatch)


def all_commands() -> list[Any]:
    """Those of all READMEs there are."""
    return [
        pytest.param(command, id=f"{readme.relative_to(ROOT)}: {' '.join(command.words)}")
        for readme in [*READMES, *DOCS]
        for command in commands(
            readme.read_text(encoding="utf-8"), ROOT if readme in DOCS else readme.parent
        )
    ]


@pytest.mark.parametrize("command", all_commands())
def test_a_command_of_a_readme_is_understood(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(command, monkeypatch)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readme_shows_commands(readme: Path) -> None:
    assert commands(readme.read_text(encoding="utf-8"), readme.parent)


@pytest.mark.parametrize("page", [*READMES, *DOCS], ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`([\w/]+\.md)`", text):
        assert (ROOT / name).exists() or (page.parent / name).exists(), name


def test_the_chinese_page_has_the_same_commands_links_and_numbers() -> None:
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")]
    english, chinese = (
        [
            [re.sub(r"\s*#.*", "", line) for _, line in fenced_lines(text)],
            [link for link in re.findall(r"\]\(([^)]+)\)", text) if "README" not in link],
            sorted(set(re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.S)))),
            re.findall(r"^\|.*?\|(.*)$", text.split("## ")[2], re.M)[2:],
        ]
        for text in pages
    )
    assert english == chinese


def test_the_first_page_leads_to_every_other() -> None:
    text = READMES[0].read_text(encoding="utf-8")
    assert not [page.name for page in DOCS if f"`docs/{page.name}`" not in text]


@pytest.mark.parametrize("document", ["FIDELITY.md", "CONTRIBUTING.md"])
def test_every_test_that_a_document_names_exists(document: str) -> None:
    there = {path.stem for path in (ROOT / "tests").glob("test_*.py")}
    for path in (ROOT / "tests").glob("test_*.py"):
        there |= set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\btest_\w+", (ROOT / document).read_text(encoding="utf-8")))
    assert named and not named - there


SAMPLE = """
python main.py --outside a block
```bash
cd continuous_BCQ && python main.py --phi 0.1   # and why
for seed in 0 1; do
  python main.py --seed $seed \\
    --overwrite
done
cd ..
make test
pip install -r requirements.txt
```
```
$ python continuous_BCQ/main.py --env Pendulum-v1; make check
```
"""


def test_commands_are_found_where_they_are_typed() -> None:
    folder = ROOT / "continuous_BCQ"
    assert commands(SAMPLE, ROOT) == [
        (folder, ["python", "main.py", "--phi", "0.1"]),
        (folder, ["python", "main.py", "--seed", "0", "--overwrite"]),
        (ROOT, ["make", "test"]),
        (ROOT, ["python", "continuous_BCQ/main.py", "--env", "Pendulum-v1"]),
        (ROOT, ["make", "check"]),
    ]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("python continuous_BCQ/main.py --no_such_flag", SystemExit),
        ("python continuous_BCQ/main.py --max_timesteps 1.5", SystemExit),
        ("python continuous_BCQ/no_such_script.py", AssertionError),
        ("python -m no_such_module", AssertionError),
        ("make no_such_target", AssertionError),
        ("cd no_such_folder", AssertionError),
    ],
)
def test_a_command_that_is_none_is_noticed(
    line: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    [command] = commands(f"```\n{line}\n```", ROOT)
    with pytest.raises(error):
        check(command, monkeypatch)
