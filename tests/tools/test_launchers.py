"""The shell scripts: what they start."""
import os
import subprocess

import pytest

from .conftest import ROOT

TOOLS = ROOT / 'tools'


@pytest.fixture
def started(tmp_path):
    """Run a script with stand-ins for ``python`` and ``srun``, which print what they were given; the words."""
    for name in ('python', 'srun'):
        stand_in = tmp_path / name
        stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@"\n')
        stand_in.chmod(0o755)

    def run(script, *arguments, **env):
        done = subprocess.run([str(TOOLS / script), *arguments], capture_output=True, text=True,
                              env=dict(PATH=f'{tmp_path}:{os.environ["PATH"]}', **env))
        return done.stdout.splitlines() if done.returncode == 0 else done

    return run


def test_dist_train(started):
    words = started('dist_train.sh', 'c.py', '4', '--amp', '--cfg-options', 'a.b=[1, 2]', NNODES='2', NODE_RANK='1',
                    MASTER_ADDR='there', PORT='3')
    assert words == ['python', '-m', 'torch.distributed.run', '--nnodes=2', '--node_rank=1', '--nproc_per_node=4',
                     '--master_addr=there', '--master_port=3', str(TOOLS / 'train.py'), 'c.py', '--launcher', 'pytorch',
                     '--amp', '--cfg-options', 'a.b=[1, 2]']


def test_dist_test(started):
    words = started('dist_test.sh', 'c.py', 'x.pth', '2', '--tta')
    assert words[5:] == ['--nproc_per_node=2', '--master_addr=127.0.0.1', '--master_port=29500', str(TOOLS / 'test.py'),
                         'c.py', 'x.pth', '--launcher', 'pytorch', '--tta']


def test_slurm_train(started):
    words = started('slurm_train.sh', 'part', 'name', 'c.py', '--resume', GPUS='16', GPUS_PER_NODE='8', SRUN_ARGS='-t 5 -q x')
    assert words == ['srun', '-p', 'part', '--job-name=name', '--gres=gpu:8', '--ntasks=16', '--ntasks-per-node=8',
                     '--cpus-per-task=5', '--kill-on-bad-exit=1', '-t', '5', '-q', 'x', 'python', '-u',
                     str(TOOLS / 'train.py'), 'c.py', '--launcher', 'slurm', '--resume']
    assert '--gres=gpu:4' in started('slurm_train.sh', 'part', 'name', 'c.py', GPUS='4')
    on_cpus = started('slurm_train.sh', 'part', 'name', 'c.py', GPUS='4', GPUS_PER_NODE='0', TASKS_PER_NODE='2')
    assert '--ntasks-per-node=2' in on_cpus and not any('gres' in word for word in on_cpus)


@pytest.mark.parametrize('script', ['dist_train.sh', 'dist_test.sh', 'slurm_train.sh'])
def test_usage(started, script):
    done = started(script)
    assert done.returncode == 2 and f'tools/{script}' in done.stderr
