"""Deployment: the ranks of a topology, one OS process each. It knows no KV and no store."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from unikv.errors import UnikvError
from unikv.tools.demo_job import Answer, Done, Job, answer_path

AT_ONCE = 12
"""Rank processes that run side by side; a larger deployment takes turns, for memory's sake."""

Advance: TypeAlias = Callable[[], None]
"""Called when one more unit of a step is done."""

_POLL_S = 0.01
_VERBS = {"write": "writing", "read": "reading"}


def run_ranks(jobs: Sequence[Job], scratch: Path, advance: Advance) -> list[Done]:
    """Run every job in a process of its own and return the answers in the jobs' order.

    Args:
        jobs: one a rank.
        scratch: folder for job files, answers and what the processes say.
        advance: called as each rank ends.

    Raises:
        UnikvError: a rank failed; the message names it. The others have been ended.
    """
    answers: dict[int, Answer] = {}
    waiting = list(enumerate(jobs))[::-1]
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                index, job = waiting.pop()
                running[index] = _start(job, _job_path(scratch, job))
            ended = [index for index, process in running.items() if process.poll() is not None]
            for index in ended:
                process = running.pop(index)
                _release(process)
                job = jobs[index]
                answers[index] = _collect(job, _job_path(scratch, job), process.returncode)
                advance()
            if not ended:
                time.sleep(_POLL_S)
    finally:
        for process in running.values():
            process.kill()
        for process in running.values():
            _release(process)
    return [Done(job, answers[index]) for index, job in enumerate(jobs)]


def _job_path(scratch: Path, job: Job) -> Path:
    return scratch / f"{job.role}-{job.tp}-{job.pp}.job"


def _start(job: Job, path: Path) -> subprocess.Popen[bytes]:
    path.write_text(str(job))
    answer_path(path).unlink(missing_ok=True)
    with path.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own module and a file that we just wrote
            # -P: a folder that happens to hold a module of some name must not come before ours.
            [sys.executable, "-P", "-m", "unikv.tools.demo_rank", str(path)],
            stdin=subprocess.PIPE,  # its end is how a rank learns that we have gone
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def _release(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin:
        process.stdin.close()


def _collect(job: Job, path: Path, status: int) -> Answer:
    """Return a rank's answer, or raise what it died of."""
    rank = f"rank {job.name} of {job.topology}, {_VERBS[job.role]}"
    if not answer_path(path).exists():
        said = path.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        raise UnikvError(
            f"{rank}: its process ended with status {status}: {said[-1] if said else 'no word'}"
        )
    answer = Answer.parse(answer_path(path).read_text())
    if answer.error:
        raise UnikvError(f"{rank}: {answer.error}")
    return answer
