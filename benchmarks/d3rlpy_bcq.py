"""BCQ of d3rlpy with the same sizes, rates and number of target candidates, in its own process."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

STATE_DIM, ACTION_DIM, BATCH_SIZE = 11, 3, 100  # Hopper
TRANSITIONS = 10_000
# Parameters of what learns, typed out from the layer sizes: another d3rlpy may build others.
EXPECTED = {"actor": 127_203, "critic": 253_202, "vae": 1_162_515}


class D3RLPY:
    """The process. Raises: SystemExit where it does not start, or is built with other sizes."""

    def __init__(self, python: Path, threads: int) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, open as long as the process
        self._process = subprocess.Popen(
            [str(python), __file__, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._read()

    @staticmethod
    def _open(stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def _read(self) -> float:
        line = self._open(self._process.stdout).readline()
        if not line:
            self._errors.seek(0)
            reason = " ".join(self._errors.read().strip().splitlines()[-1:])
            raise SystemExit(f"d3rlpy stopped: {reason or 'without a message'}")
        return float(line)

    def seconds(self, times: int) -> float:
        """Of one update, over `times` updates."""
        print(times, file=self._open(self._process.stdin), flush=True)
        return self._read() / times

    def close(self) -> None:
        """End the process."""
        self._open(self._process.stdin).close()
        self._process.wait()
        self._errors.close()


def serve(threads: int) -> None:
    """For each number on stdin, the seconds of so many updates."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not reach the replies
    import d3rlpy
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    ends = np.zeros(TRANSITIONS, np.float32)
    ends[999::1000] = 1  # d3rlpy stores episodes; these end by a time limit, not a terminal state
    dataset = d3rlpy.dataset.MDPDataset(
        rng.standard_normal((TRANSITIONS, STATE_DIM)).astype(np.float32),
        rng.uniform(-1, 1, (TRANSITIONS, ACTION_DIM)).astype(np.float32),
        rng.standard_normal((TRANSITIONS, 1)).astype(np.float32),
        terminals=ends * 0,
        timeouts=ends,
    )
    small = d3rlpy.models.VectorEncoderFactory(hidden_units=[400, 300])
    agent = d3rlpy.algos.BCQConfig(
        actor_encoder_factory=small,
        critic_encoder_factory=small,
        imitator_encoder_factory=d3rlpy.models.VectorEncoderFactory(hidden_units=[750, 750]),
        batch_size=BATCH_SIZE,
        n_action_samples=10,  # d3rlpy has one number for target and acting; nothing acts here
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        imitator_learning_rate=1e-3,
    ).create(device="cpu:0")
    agent.build_with_dataset(dataset)
    batch = dataset.sample_transition_batch(BATCH_SIZE)
    modules = agent.impl.modules
    built = {
        "actor": [modules.policy],
        "critic": [modules.q_funcs],
        "vae": [modules.vae_encoder, modules.vae_decoder],
    }
    sizes = {
        name: sum(weight.numel() for part in kinds for weight in part.parameters())
        for name, kinds in built.items()
    }
    if sizes != EXPECTED:
        raise SystemExit(f"it has {sizes} parameters, not {EXPECTED}")
    clock = time.process_time if threads == 1 else time.perf_counter
    print(0.0, file=replies, flush=True)
    for line in sys.stdin:
        start = clock()
        for _ in range(int(line)):
            agent.update(batch)
        print(clock() - start, file=replies, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
