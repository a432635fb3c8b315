"""What every test begins with: the same seed, and numbers of threads that a test has changed put back."""
import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compiled():
    """Skip where no compiled module is loaded: the test compares it with the reference."""
    from mesa_seg import ops
    if ops.KERNELS['CPU'] != 'compiled':
        pytest.skip('no compiled CPU operators (mesa_seg._C): nothing to compare with the reference')
