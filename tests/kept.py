"""What a forward keeps for backward, counted by autograd's own saved-tensor hooks."""
import torch
from torch.multiprocessing.reductions import StorageWeakRef


def kept(function, *exclude):
    """``(function(), bytes)``: each storage that is still alive once, those of ``exclude`` (tensors) left out."""
    left_out = {StorageWeakRef(t.untyped_storage()) for t in exclude}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference not in left_out:
            storages[reference] = storage.nbytes()
        return tensor.detach()  # an output among them would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = function()
    return out, sum(nbytes for reference, nbytes in storages.items() if not reference.expired())
