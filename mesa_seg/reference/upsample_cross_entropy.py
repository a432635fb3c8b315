"""Plain-PyTorch twin of :mod:`mesa_seg.ops.upsample_cross_entropy`: bands of output rows, no full-size logits."""
import torch

from mesa_seg.reference.upsample import bilinear_taps, tap_matrix

BAND = 1 << 22  # values of one band of upsampled logits


def upsample_cross_entropy(logits, labels, weight, class_weight, ignore_index, align_corners, pixel_loss, gradient):
    batch, classes, height, width = logits.shape
    rows, columns = labels.shape[1:]
    device = logits.device
    loss = torch.zeros(labels.shape if pixel_loss else [0], dtype=torch.float32, device=device)
    grad = torch.zeros(logits.shape if gradient else [0], dtype=torch.float32, device=device)
    sums = torch.zeros(batch, 5, dtype=torch.float64, device=device)
    sums[:, 4] = -1
    if labels.numel() == 0:
        return loss, grad, sums
    row_index, row_weight = bilinear_taps(rows, height, align_corners, device)
    column_index, column_weight = bilinear_taps(columns, width, align_corners, device)
    row_matrix = tap_matrix(row_index, row_weight, height)
    column_matrix = tap_matrix(column_index, column_weight, width)
    ordinal = torch.arange(classes, device=device)[:, None, None]
    step = max(1, BAND // max(1, classes * columns))
    for b in range(batch):
        image = logits[b].float()
        for top in range(0, rows, step):
            band = slice(top, min(top + step, rows))
            low = sum(row_weight[band, t, None] * image[:, row_index[band, t]] for t in (0, 1))
            full = sum(column_weight[:, t] * low[:, :, column_index[:, t]] for t in (0, 1))
            label = labels[b, band].long()
            kept = label != ignore_index
            bad = kept & ((label < 0) | (label >= classes))
            place = torch.where(bad, torch.arange(top * columns, band.stop * columns, device=device).view_as(label),
                                rows * columns).min().double()
            sums[b, 4] = torch.where((sums[b, 4] < 0) & (place < rows * columns), place, sums[b, 4])
            kept = kept & ~bad
            target = torch.where(kept, label, 0)
            each = kept.float()
            if class_weight is not None:
                each = each * class_weight.float()[target]
            sums[b, 3] += each.double().sum()
            if weight is not None:
                each = torch.where(kept, each * weight[b, band].float(), 0)
            peak = full.amax(0)
            power = (full - peak).exp()
            total = power.sum(0)
            nll = total.log() + peak - full.gather(0, target[None])[0]
            nll = torch.where(kept, nll * each, 0)
            best = torch.where((full == peak) | full.isnan(), ordinal, classes).amin(0)
            sums[b, 0] += nll.double().sum()
            sums[b, 1] += kept.sum()
            sums[b, 2] += (kept & (best == target)).sum()
            if pixel_loss:
                loss[b, band] = nll
            if gradient:
                power = power / total
                power.scatter_add_(0, target[None], torch.full_like(power[:1], -1.0))
                power = torch.where(kept, power * each, 0)
                grad[b] += torch.matmul(row_matrix[band].T, torch.matmul(power, column_matrix))
    return loss, grad, sums
