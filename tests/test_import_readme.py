"""The README's page 'Your own data', run as it is written; what a large file costs in memory."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
from conftest import ROOT


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command as typed, `python` being this one; on one core, which it then takes for all."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    one_core = (
        ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if shutil.which("taskset") else []
    )
    return subprocess.run(
        [*one_core, "bash", "-c", command],
        cwd=cwd,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )


def test_four_commands_lead_from_twenty_rows_to_a_policy(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").split("## Your own data")[1]
    commands = re.search(r"```bash\n(.*?)```", page, re.DOTALL)[1].splitlines()  # type: ignore[index]
    assert len(commands) == 4
    assert len((ROOT / "datasets" / "example.csv").read_text().splitlines()) == 21
    outputs = ["results", "models", "buffers", "quickstart", "tests", "__pycache__", ".*"]
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(*outputs))
    printed = []
    for command in commands:
        result = shell(command, copy)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        printed.append(result.stdout)
    assert printed[0].startswith("episode,state_0,") and "read 18 transitions" in printed[1]
    assert "| Pendulum-v1 | Mine | BCQ | 1 |" in printed[3]
    assert (copy / "models" / "BCQ_Mine_Pendulum-v1_0.pt").exists()
    # The command that the import names is the one that learns.
    assert "python continuous_BCQ/main.py --env Pendulum-v1 --buffer_name Mine" in printed[1]


def test_a_rollout_is_written_and_imported_as_the_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8").split("A rollout of gym")[1]
    script, command = (
        re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1]  # type: ignore[index]
        for kind in ("python", "bash")
    )
    (tmp_path / "rollout.py").write_text(script)
    written = shell("python -W ignore rollout.py", tmp_path)
    assert written.returncode == 0, written.stderr
    command = command.replace("import_dataset.py", f"{ROOT}/import_dataset.py").strip()
    imported = shell(f"{command} --output_dir .", tmp_path)
    assert imported.returncode == 0, imported.stderr
    rows = len(np.load(tmp_path / "log.npz")["reward"])
    assert f"read {rows} transitions" in imported.stdout


MEASURE = """
import sys
import import_dataset
from datasets.task import task_of
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1024
task_of("Hopper-v4")
before = peak()
import_dataset.main()
print("bytes", peak() - before)
"""


def test_a_large_file_takes_less_memory_than_one_and_a_half_times_its_size(tmp_path: Path) -> None:
    rows, path = 500_000, tmp_path / "data.hdf5"
    draw = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["observations"] = draw.random((rows, 11), np.float32)
        file["actions"] = draw.random((rows, 3), np.float32)
        file["rewards"] = draw.random(rows, np.float32)
        file["terminals"] = draw.random(rows) < 0.001
        file["timeouts"] = np.arange(rows) % 1000 == 999
    argv = f"--d4rl {path} --env Hopper-v4 --output_dir {tmp_path}"
    result = shell(f"python -c '{MEASURE}' {argv}", ROOT)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split("bytes ")[1]) < 1.5 * path.stat().st_size
