"""Plain-PyTorch twin of :mod:`mesa_seg.ops.upsample_argmax`: bands of output rows, no full-size logits."""
import torch

BAND = 1 << 22  # values of one band of upsampled logits


def upsample_argmax(logits, row_index, row_weight, column_index, column_weight, softmax):
    rows, columns = len(row_index[0]), len(column_index[0])
    labels = torch.empty(rows, columns, dtype=torch.int64, device=logits[0].device)
    step = max(1, BAND // max(1, logits[0].shape[0] * columns))
    for top in range(0, rows, step):
        band = slice(top, min(top + step, rows))
        total = 0
        for image, y, wy, x, wx in zip(logits, row_index, row_weight, column_index, column_weight, strict=True):
            low = sum(wy[band, t, None] * image[:, y[band, t].long()].float() for t in range(y.shape[1]))
            full = sum(wx[:, t] * low[:, :, x[:, t].long()] for t in range(x.shape[1]))
            total = total + (full.softmax(0) if softmax else full)
        labels[band] = total.argmax(0)
    return labels
