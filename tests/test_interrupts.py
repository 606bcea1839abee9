"""Ctrl-C while packages are imported."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

SCRIPTS = sorted(
    path
    for path in [*ROOT.glob("*.py"), *ROOT.glob("*_BCQ/*.py")]
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)
# Ctrl-C at the moment at which the first package that takes its time is imported.
INTERRUPTED = """
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name in ("numpy", "torch", "matplotlib", "gymnasium"):
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
script = sys.argv[1]
sys.path[0] = os.path.dirname(script)
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_ctrl_c_while_packages_are_imported_ends_quietly(script: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(script)], capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this code at the repository's root."""
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, text=True, check=False, cwd=ROOT, **options)


def test_where_ctrl_c_is_ignored_it_stays_so_and_else_run_hears_it_again() -> None:
    code = """
import signal
from common.errors import end_quietly, run
signal.signal(signal.SIGINT, signal.{})
end_quietly()
run(lambda: print(signal.getsignal(signal.SIGINT) is signal.{}))
"""
    for handler in ["SIG_IGN", "default_int_handler"]:
        assert python(code.format(handler, handler), capture_output=True).stdout == "True\n"
