"""The papers' experiments as one command: behaviour -> batch -> learners, then what they show.

    python reproduce.py quick
    python reproduce.py imperfect --envs Hopper-v4 --seeds 0-4 --algorithms BCQ DDPG --scale 0.1
    python reproduce.py icml2019 --dry_run
    python reproduce.py --report results

Every run is a main.py command that a person could type, and the same run: what is finished is not
run again, what was interrupted goes on. docs/reproduce.md has the rest.
"""

from common.errors import end_quietly, run

if __name__ == "__main__":
    end_quietly()

from sweeps.command_line import main

if __name__ == "__main__":
    run(main)
